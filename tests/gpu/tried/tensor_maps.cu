// Slices by tensor maps, one instruction for each of A and B; mbarriers where the tool has block barriers.
//
// A box is wider than its slice by the pad, so that rows land as far apart as cp.async puts them. The pad holds the
// columns beside the slice, or zeros beyond the matrix, and nobody reads it. A tensor map has no other way to padded
// rows, and its own swizzles are none that load_matrix_sync reads.
//
// In a cluster each block asks for its share of what it has in common with its peers, and the copy goes to all of them:
// the CLUSTER_N blocks of one row share A, the CLUSTER_M blocks of one column share B. The assembler advises sm_90a for
// such copies; its machine code is the same as for sm_90.
//
// Blocks are persistent where the grid is smaller than the tiles: the first slices of the next tile are on their way
// while the last ones of this are multiplied.

struct alignas(64) TensorMap {
  unsigned long long words[16];
};

constexpr unsigned SLICE_BYTES = (A_STAGE + B_STAGE) * sizeof(__half);
constexpr int A_ROWS = BLOCK_M / CLUSTER_N, B_ROWS = BLOCK_K / CLUSTER_M;  // of a box
// What a tensor map asks of a place in shared memory.
static_assert(A_ROWS * LDA * 2 % 128 == 0 && B_ROWS * LDB * 2 % 128 == 0);
// And of a box.
static_assert(A_ROWS <= 256 && LDA <= 256 && B_ROWS <= 256 && LDB <= 256);

__device__ __forceinline__ void copy_box(
    unsigned to, const TensorMap* map, int col, int row, unsigned full, unsigned short peers) {
  if (peers)
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(col), "r"(row), "r"(full), "h"(peers)
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(map), "r"(col), "r"(row), "r"(full)
        : "memory");
}

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, MIN_BLOCKS) tensor_maps(
    const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, SUM* D, int M, int N, int K, int ldd) {
  extern __shared__ __align__(128) __half shared[];
  __shared__ alignas(8) unsigned long long full[STAGES], empty[STAGES];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = PEERS > 1 ? (int)rank_in_cluster() : 0;
  const int m = rank / CLUSTER_N, n = rank % CLUSTER_N;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      init(shared_address(&full[s]), 1);
      // Every warp of every block that this one copies for.
      init(shared_address(&empty[s]), WARPS * (CLUSTER_M + CLUSTER_N - 1));
    }
    fence_init();
  }
  if (PEERS > 1)
    cluster_barrier();
  else
    __syncthreads();

  const int slices = K / BLOCK_K, tiles = M / (BLOCK_M * CLUSTER_M) * (N / (BLOCK_N * CLUSTER_N));
  const int first = blockIdx.x / PEERS, step = gridDim.x / PEERS;
  const int total = first < tiles ? (tiles - first + step - 1) / step * slices : 0;

  // Thread 0 asks for slices, in the order in which they are multiplied, across tiles.
  int asked = 0, ask_slice = 0, ask_tile = first, ask_stage = 0, ask_row, ask_col;
  unsigned ask_parity = 1;  // a stage that nobody has used yet counts as empty
  place(ask_tile, M, N, m, n, ask_row, ask_col);
  const unsigned base = shared_address(shared);
  const auto ask = [&] {
    if (asked >= total) return;
    const unsigned barrier = shared_address(&full[ask_stage]);
    wait(shared_address(&empty[ask_stage]), ask_parity);
    expect(barrier, SLICE_BYTES);
    unsigned short sharing_a = 0, sharing_b = 0;
    if constexpr (CLUSTER_N > 1)
      for (int i = 0; i < CLUSTER_N; ++i) sharing_a |= 1 << (m * CLUSTER_N + i);
    if constexpr (CLUSTER_M > 1)
      for (int i = 0; i < CLUSTER_M; ++i) sharing_b |= 1 << (i * CLUSTER_N + n);
    const int a_row = n * A_ROWS, b_row = m * B_ROWS, k = ask_slice * BLOCK_K;
    const unsigned a_to = base + (ask_stage * A_STAGE + a_row * LDA) * 2;
    const unsigned b_to = base + (STAGES * A_STAGE + ask_stage * B_STAGE + b_row * LDB) * 2;
    copy_box(a_to, &A, k, ask_row + a_row, barrier, sharing_a);
    copy_box(b_to, &B, ask_col, k + b_row, barrier, sharing_b);
    ++asked;
    if (++ask_stage == STAGES) ask_stage = 0, ask_parity ^= 1;
    if (++ask_slice == slices) {
      ask_slice = 0;
      ask_tile += step;
      place(ask_tile, M, N, m, n, ask_row, ask_col);
    }
  };
  const auto leave = [&](int stage) {
    __syncwarp();
    if (lane != 0) return;
    if constexpr (PEERS == 1) {
      arrive(shared_address(&empty[stage]));
    } else {
#pragma unroll
      for (int i = 0; i < PEERS; ++i)
        if (i / CLUSTER_N == m || i % CLUSTER_N == n) arrive_at_peer(of_block(shared_address(&empty[stage]), i));
    }
  };

  if (threadIdx.x == 0)
    for (int i = 0; i < FIRST; ++i) ask();
  Sums sums[FRAGS_M][FRAGS_N];
  FragmentA a[2][FRAGS_M];
  FragmentB b[2][FRAGS_N];
  if (total) {
    wait(shared_address(&full[0]), 0);
    load_step(shared, 0, 0, warp, a[0], b[0]);
  }
  int stage = 0, left = total;
  unsigned parity = 0;
  for (int tile = first; tile < tiles; tile += step) {
    int row, col;
    place(tile, M, N, m, n, row, col);
    clear(sums);
    for (int slice = 0; slice < slices; ++slice) {
      --left;
      const int next = stage + 1 == STAGES ? 0 : stage + 1;
      const unsigned next_parity = next ? parity : parity ^ 1;
#pragma unroll
      for (int k = 0; k < STEPS; ++k) {
        if (k + 1 < STEPS) {
          load_step(shared, stage, k + 1, warp, a[(k + 1) % 2], b[(k + 1) % 2]);
          if (k == 0 && threadIdx.x == 0) ask();
        } else {
          if (left) wait(shared_address(&full[next]), next_parity);
          leave(stage);
          // Behind the last slice its own first step is loaded again and not used, as the tool does it.
          load_step(shared, left ? next : stage, 0, warp, a[0], b[0]);
        }
        multiply(sums, a[k % 2], b[k % 2]);
      }
      stage = next;
      parity = next_parity;
    }
    store(D, ldd, row, col, warp, sums);
  }
  // A block that has left has no shared memory to which a peer could copy or at which it could arrive.
  if (PEERS > 1) cluster_barrier();
}
