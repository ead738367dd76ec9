// The tool's own pipeline of cp.async, in blocks that stay for many tiles and copy ahead across them, and what was
// changed in it:
//
//   MBARRIERS  full and empty mbarriers in place of the block barrier, so that no warp waits for the slowest
//   SETS       of fragments: 2, those of the next step are loaded beside the products of this one; 1, before them
//   SUM        type of the sums and of D
//
// And what was left out of it to see what it costs; the result is wrong then, and only the time is of use:
//
//   BARRIER    the block barrier of a slice
//   COPIES     those of the loop; all stages are filled before it, so that operands stay what they were
//   READ       bytes that a copy of 16 reads; with 0 it fills with zeros, and the L2 has nothing to do
//   STORE      of D, but for a condition that never holds and keeps the products alive

constexpr int A_VECTORS = BLOCK_K / 8, B_VECTORS = BLOCK_N / 8;            // copies of 16 bytes in a row
constexpr int A_ROWS = THREADS / A_VECTORS, B_ROWS = THREADS / B_VECTORS;  // rows of one copy of all threads
constexpr int A_COPIES = BLOCK_M / A_ROWS, B_COPIES = BLOCK_K / B_ROWS;    // of a thread
static_assert(THREADS % A_VECTORS == 0 && THREADS % B_VECTORS == 0 && BLOCK_M % A_ROWS == 0 && BLOCK_K % B_ROWS == 0);
static_assert(PEERS == 1 && (STEPS % 2 == 0 || SETS == 1) && (COPIES || !MBARRIERS));

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    cp_async(const __half* __restrict__ A, const __half* __restrict__ B, SUM* D, int M, int N, int K, int ldd) {
  extern __shared__ __align__(128) __half shared[];
  __shared__ alignas(8) unsigned long long full[STAGES], empty[STAGES];
  const int lda = K, ldb = N, thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  if (MBARRIERS) {
    if (thread == 0)
      for (int s = 0; s < STAGES; ++s) {
        init(shared_address(&full[s]), THREADS);
        init(shared_address(&empty[s]), WARPS);
      }
    __syncthreads();
  }
  const int slices = K / BLOCK_K, tiles = M / BLOCK_M * (N / BLOCK_N), first = blockIdx.x, step = gridDim.x;
  const int total = first < tiles ? (tiles - first + step - 1) / step * slices : 0;

  int copy_slice = 0, copy_tile = first;
  const __half *a_from, *b_from;
  const auto begin_tile = [&] {
    int row, col;
    place(copy_tile, M, N, 0, 0, row, col);
    a_from = A + (long long)(row + thread / A_VECTORS) * lda + thread % A_VECTORS * 8;
    b_from = B + (long long)(thread / B_VECTORS) * ldb + col + thread % B_VECTORS * 8;
  };
  begin_tile();
  const long long a_step = (long long)A_ROWS * lda, b_step = (long long)B_ROWS * ldb;
  const unsigned a_to = shared_address(shared + thread / A_VECTORS * LDA + thread % A_VECTORS * 8);
  const unsigned b_to =
      shared_address(shared + STAGES * A_STAGE + thread / B_VECTORS * LDB + thread % B_VECTORS * 8);
  // The copies of a slice go in STEPS - 1 parts, one beside the products of each step but the last.
  const auto copy_part = [&](int stage, int part) {
#pragma unroll
    for (int i = 0; i < A_COPIES; ++i)
      if (i * (STEPS - 1) / A_COPIES == part)
        copy_16_bytes(a_to + (stage * A_STAGE + i * A_ROWS * LDA) * 2, a_from + i * a_step);
#pragma unroll
    for (int i = 0; i < B_COPIES; ++i)
      if (i * (STEPS - 1) / B_COPIES == part)
        copy_16_bytes(b_to + (stage * B_STAGE + i * B_ROWS * LDB) * 2, b_from + i * b_step);
    if (part != STEPS - 2) return;
    a_from += BLOCK_K;
    b_from += BLOCK_K * (long long)ldb;
    if (++copy_slice == slices) {
      copy_slice = 0;
      copy_tile += step;
      if (copy_tile < tiles) begin_tile();
    }
  };
  const auto close = [&](int stage) {
    if (MBARRIERS)
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&full[stage]))
                   : "memory");
    else
      close_group();
  };
  const auto await_group = [&] { asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory"); };

  for (int s = 0; s < (COPIES ? STAGES - 1 : STAGES); ++s) {
    if (s < total)
      for (int part = 0; part < STEPS - 1; ++part) copy_part(s, part);
    close(s);
  }
  if (MBARRIERS) {
    if (total) wait(shared_address(&full[0]), 0);
  } else {
    await_group();
    __syncthreads();
  }
  Sums sums[FRAGS_M][FRAGS_N];
  FragmentA a[SETS][FRAGS_M];
  FragmentB b[SETS][FRAGS_N];
  if (SETS == 2 && total) load_step(shared, 0, 0, warp, a[0], b[0]);
  int stage = 0, fill = STAGES - 1, done = 0;
  unsigned parity = 0, fill_parity = 1;  // a stage that nobody has used yet counts as empty
  for (int tile = first; tile < tiles; tile += step) {
    int row, col;
    place(tile, M, N, 0, 0, row, col);
    clear(sums);
    for (int slice = 0; slice < slices; ++slice, ++done) {
      const bool more = done + STAGES - 1 < total, last = done + 1 == total;
      const int next = stage + 1 == STAGES ? 0 : stage + 1;
      const unsigned next_parity = next ? parity : parity ^ 1;
      const auto to_next_slice = [&] {
        if (MBARRIERS) {
          if (more) close(fill);
          __syncwarp();
          if (lane == 0) arrive(shared_address(&empty[stage]));
          if (!last) wait(shared_address(&full[next]), next_parity);
        } else {
          close(fill);
          await_group();
          if (BARRIER) __syncthreads();
        }
      };
      if (MBARRIERS && more) wait(shared_address(&empty[fill]), fill_parity);
#pragma unroll
      for (int k = 0; k < STEPS; ++k) {
        if (SETS == 1) load_step(shared, stage, k, warp, a[0], b[0]);
        if (k + 1 < STEPS) {
          if (SETS == 2) load_step(shared, stage, k + 1, warp, a[(k + 1) % SETS], b[(k + 1) % SETS]);
          if (COPIES && more) copy_part(fill, k);
        } else if (SETS == 2) {
          to_next_slice();
          load_step(shared, last ? stage : next, 0, warp, a[0], b[0]);
        }
        multiply(sums, a[k % SETS], b[k % SETS]);
      }
      if (SETS == 1) to_next_slice();
      stage = next;
      parity = next_parity;
      if (++fill == STAGES) fill = 0, fill_parity ^= 1;
    }
    if (STORE) {
      store(D, ldd, row, col, warp, sums);
    } else {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < FRAGS_M; ++i)
#pragma unroll
        for (int j = 0; j < FRAGS_N; ++j)
          for (int e = 0; e < sums[i][j].num_elements; ++e) sum += (float)sums[i][j].x[e];
      if (sum == 12345.678f) D[0] = sum;  // no sum of integers, and of normal data next to never
    }
  }
}
