// What the kernels of this folder share. measure_tried.py puts their numbers in front, as macros:
//   WARPS_M WARPS_N      warps of a block
//   FRAGS_M FRAGS_N      tiles of 16x16 of a warp
//   STEPS STAGES         steps of 16 of K in a slice, slices in shared memory
//   CLUSTER_M CLUSTER_N  blocks of a cluster, 1 and 1 for none
//   PANEL                clusters side by side whose rows run together, so that they find A and B in the L2
//   MIN_BLOCKS           blocks of a multiprocessor, which bounds the registers
//   FIRST                slices that are asked for before the first product (tensor_maps.cu)
//   SETS MBARRIERS BARRIER COPIES STORE SUM   see cp_async.cu
//   RELEASE ACQUIRE      of arrivals at a peer's mbarrier and of waits: ".release.cluster" and ".acquire.cluster", as
//                        the memory model asks between blocks, or "" for the block's own scope. Of the former the
//                        assembler makes a MEMBAR.ALL.GPU before each arrival, of the latter a CCTL.IVALL behind each
//                        wait. What an arrival has to order here is loads from shared memory.
#include <cuda_fp16.h>
#include <mma.h>

namespace wmma = nvcuda::wmma;

constexpr int BLOCK_M = WARPS_M * FRAGS_M * 16, BLOCK_N = WARPS_N * FRAGS_N * 16, BLOCK_K = STEPS * 16;
constexpr int WARPS = WARPS_M * WARPS_N, THREADS = 32 * WARPS, PEERS = CLUSTER_M * CLUSTER_N;
// Rows are padded by 16 bytes, as the tool's are: eight rows of a fragment then lie in different banks.
constexpr int LDA = BLOCK_K + 8, LDB = BLOCK_N + 8;
constexpr int A_STAGE = BLOCK_M * LDA, B_STAGE = BLOCK_K * LDB;  // elements; all stages of A lie before those of B

#if CLUSTER_M * CLUSTER_N > 1
#define IN_CLUSTERS __cluster_dims__(CLUSTER_M* CLUSTER_N, 1, 1)
#else
#define IN_CLUSTERS
#endif

using FragmentA = wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major>;
using FragmentB = wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major>;
using Sums = wmma::fragment<wmma::accumulator, 16, 16, 16, SUM>;

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return (unsigned)__cvta_generic_to_shared(p);
}

// The same address in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ unsigned of_block(unsigned address, unsigned rank) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

__device__ __forceinline__ unsigned rank_in_cluster() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

__device__ __forceinline__ void init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ __forceinline__ void fence_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred P;\n"
      "W: mbarrier.try_wait.parity" ACQUIRE
      ".shared::cta.b64 P, [%0], %1;\n"
      "@P bra D;\nbra W;\nD:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// `barrier` is one of of_block().
__device__ __forceinline__ void arrive_at_peer(unsigned barrier) {
  asm volatile("mbarrier.arrive" RELEASE ".shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives and adds the bytes that copies will bring.
__device__ __forceinline__ void expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copy_16_bytes(unsigned to, const __half* from) {
  if (READ == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(READ) : "memory");
}

__device__ __forceinline__ void close_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Where block (m, n) of a cluster has its tile when the cluster has number `tile`: along the rows of a panel.
__device__ __forceinline__ void place(int tile, int M, int N, int m, int n, int& row, int& col) {
  const int down = M / (BLOCK_M * CLUSTER_M), across = N / (BLOCK_N * CLUSTER_N);
  const int panel = tile / (PANEL * down), first = panel * PANEL;
  const int width = across - first < PANEL ? across - first : PANEL;
  const int within = tile - panel * (PANEL * down);
  row = (within / width * CLUSTER_M + m) * BLOCK_M;
  col = ((first + within % width) * CLUSTER_N + n) * BLOCK_N;
}

// The fragments of one step of a stage.
__device__ __forceinline__ void load_step(
    const __half* shared, int stage, int step, int warp, FragmentA (&a)[FRAGS_M], FragmentB (&b)[FRAGS_N]) {
  const __half* rows = shared + stage * A_STAGE + warp / WARPS_N * FRAGS_M * 16 * LDA + step * 16;
  const __half* cols = shared + STAGES * A_STAGE + stage * B_STAGE + warp % WARPS_N * FRAGS_N * 16 + step * 16 * LDB;
#pragma unroll
  for (int i = 0; i < FRAGS_M; ++i) wmma::load_matrix_sync(a[i], rows + i * 16 * LDA, LDA);
#pragma unroll
  for (int j = 0; j < FRAGS_N; ++j) wmma::load_matrix_sync(b[j], cols + j * 16, LDB);
}

__device__ __forceinline__ void clear(Sums (&sums)[FRAGS_M][FRAGS_N]) {
#pragma unroll
  for (int i = 0; i < FRAGS_M; ++i)
#pragma unroll
    for (int j = 0; j < FRAGS_N; ++j) wmma::fill_fragment(sums[i][j], (SUM)0.0f);
}

__device__ __forceinline__ void multiply(
    Sums (&sums)[FRAGS_M][FRAGS_N], FragmentA (&a)[FRAGS_M], FragmentB (&b)[FRAGS_N]) {
#pragma unroll
  for (int i = 0; i < FRAGS_M; ++i)
#pragma unroll
    for (int j = 0; j < FRAGS_N; ++j) wmma::mma_sync(sums[i][j], a[i], b[j], sums[i][j]);
}

__device__ __forceinline__ void store(SUM* D, int ldd, int row, int col, int warp, Sums (&sums)[FRAGS_M][FRAGS_N]) {
  row += warp / WARPS_N * FRAGS_M * 16;
  col += warp % WARPS_N * FRAGS_N * 16;
  SUM* d = D + (long long)row * ldd + col;
#pragma unroll
  for (int i = 0; i < FRAGS_M; ++i)
#pragma unroll
    for (int j = 0; j < FRAGS_N; ++j)
      wmma::store_matrix_sync(d + (long long)i * 16 * ldd + j * 16, sums[i][j], ldd, wmma::mem_row_major);
}
