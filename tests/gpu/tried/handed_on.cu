// Two blocks of a cluster that stand side by side and share the rows of A: each copies half of a slice of A by
// cp.async, and hands it on to the other's shared memory by one bulk copy, once all of its threads have copied. B is
// each block's own. So A comes from the L2 once for both, and a bulk copy is as long as half a stage, not as a row.
//
// A stage has two barriers: `full`, when the half that the peer copied has come; `freed`, when the peer has read its
// stage, to which this block hands on again.

constexpr unsigned HALF_BYTES = A_STAGE;                                     // half of the elements, two bytes each
constexpr int A_VECTORS = BLOCK_K / 8, B_VECTORS = BLOCK_N / 8;              // copies of 16 bytes in a row
constexpr int A_ROWS = THREADS / A_VECTORS, B_ROWS = THREADS / B_VECTORS;    // rows of one copy of all threads
constexpr int A_COPIES = BLOCK_M / 2 / A_ROWS, B_COPIES = BLOCK_K / B_ROWS;  // of a thread
static_assert(CLUSTER_M == 1 && CLUSTER_N == 2 && STAGES == 4 && BLOCK_M / 2 % A_ROWS == 0 && BLOCK_K % B_ROWS == 0);

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, MIN_BLOCKS)
    handed_on(const __half* __restrict__ A, const __half* __restrict__ B, SUM* D, int M, int N, int K, int ldd) {
  extern __shared__ __align__(128) __half shared[];
  __shared__ alignas(8) unsigned long long full[STAGES], freed[STAGES];
  const int lda = K, ldb = N, thread = threadIdx.x, warp = thread / 32;
  const unsigned rank = rank_in_cluster(), peer = rank ^ 1;
  if (thread == 0) {
    for (int s = 0; s < STAGES; ++s) {
      init(shared_address(&full[s]), 1);
      init(shared_address(&freed[s]), 1);
    }
    fence_init();
  }
  cluster_barrier();

  int row, col;
  place(blockIdx.x / PEERS, M, N, 0, rank, row, col);
  const int a_first = rank * (BLOCK_M / 2) + thread / A_VECTORS;
  const __half* a_from = A + (long long)(row + a_first) * lda + thread % A_VECTORS * 8;
  const __half* b_from = B + (long long)(thread / B_VECTORS) * ldb + col + thread % B_VECTORS * 8;
  const long long a_step = (long long)A_ROWS * lda, b_step = (long long)B_ROWS * ldb;
  const unsigned a_to = shared_address(shared + a_first * LDA + thread % A_VECTORS * 8);
  const unsigned b_to =
      shared_address(shared + STAGES * A_STAGE + thread / B_VECTORS * LDB + thread % B_VECTORS * 8);
  const auto copy_part = [&](int stage, int part) {
#pragma unroll
    for (int i = 0; i < A_COPIES; ++i)
      if (i * (STEPS - 1) / A_COPIES == part)
        copy_16_bytes(a_to + (stage * A_STAGE + i * A_ROWS * LDA) * 2, a_from + i * a_step);
#pragma unroll
    for (int i = 0; i < B_COPIES; ++i)
      if (i * (STEPS - 1) / B_COPIES == part)
        copy_16_bytes(b_to + (stage * B_STAGE + i * B_ROWS * LDB) * 2, b_from + i * b_step);
    if (part == STEPS - 2) {
      a_from += BLOCK_K;
      b_from += BLOCK_K * (long long)ldb;
    }
  };
  // What this thread copied, all but the last group, is there for a bulk copy to read, which is of another proxy.
  const auto await_group = [&] {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  };
  const auto hand_on = [&](int stage) {  // thread 0
    const unsigned from = shared_address(shared) + rank * HALF_BYTES + stage * A_STAGE * 2;
    const unsigned to = of_block(from, peer), barrier = of_block(shared_address(&full[stage]), peer);
    expect(shared_address(&full[stage]), HALF_BYTES);
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "r"(from), "r"(HALF_BYTES), "r"(barrier)
        : "memory");
  };

  const int slices = K / BLOCK_K;
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < slices)
      for (int part = 0; part < STEPS - 1; ++part) copy_part(s, part);
    close_group();
  }
  await_group();
  __syncthreads();
  if (thread == 0) {
    hand_on(0);
    if (slices > 1) hand_on(1);
    wait(shared_address(&full[0]), 0);
  }
  __syncthreads();
  Sums sums[FRAGS_M][FRAGS_N];
  FragmentA a[2][FRAGS_M];
  FragmentB b[2][FRAGS_N];
  clear(sums);
  load_step(shared, 0, 0, warp, a[0], b[0]);
  for (int s = 0; s < slices; ++s) {
    const bool more = s + STAGES - 1 < slices, last = s + 1 == slices;
    const int stage = s % STAGES, next = (s + 1) % STAGES, after = (s + 2) % STAGES, fill = (s + 3) % STAGES;
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
      if (k + 1 < STEPS) {
        load_step(shared, stage, k + 1, warp, a[(k + 1) % 2], b[(k + 1) % 2]);
        if (more) copy_part(fill, k);
      } else {
        close_group();
        await_group();
        // One thread looks at the peer's half, and the block barrier says it to all.
        if (thread == 0 && !last) wait(shared_address(&full[next]), (s + 1) / STAGES & 1);
        __syncthreads();
        if (thread == 0) {
          arrive_at_peer(of_block(shared_address(&freed[stage]), peer));
          if (s + 2 < slices) {
            if (s >= 2) wait(shared_address(&freed[after]), (s - 2) / STAGES & 1);
            hand_on(after);
          }
        }
        load_step(shared, last ? stage : next, 0, warp, a[0], b[0]);
      }
      multiply(sums, a[k % 2], b[k % 2]);
    }
  }
  store(D, ldd, row, col, warp, sums);
  // A block that has left has no shared memory to which a peer could copy or at which it could arrive.
  cluster_barrier();
}
