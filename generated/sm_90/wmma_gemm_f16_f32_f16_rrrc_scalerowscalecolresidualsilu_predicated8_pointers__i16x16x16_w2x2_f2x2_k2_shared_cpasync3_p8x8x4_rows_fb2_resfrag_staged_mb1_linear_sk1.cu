// wmma_gemm_f16_f32_f16_rrrc_scalerowscalecolresidualsilu_predicated8_pointers__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1
//
// D = A * B and its epilogue on tensor cores. A (M x K) and B (K x N) are f16, row-major;
// D (M x N) is f16, column-major. Sums are f32.
// Each element of D goes through these steps, in float, and is rounded once; acc is what came before:
//   scalerow acc*scale_row
//   scalecol acc*scale_col
//   residual acc+r
//   silu     ratio(acc,1+exp(-acc))
// R (M x N, row-major) is f16.
// scale_row has M elements, one for each row of D, in float.
// scale_col has N elements, one for each column of D, in float.
//
//   sizes     lda, ldb, ldr, ldd: of 8, 8, 8, 8
//   batch     products of matrices that arrays of pointers name, in one launch
//   block     64 x 64 of D, 32 of K at a time
//   threads   128: 2 x 2 warps, each 32 x 32 of D
//   shared    29184 bytes, 3 stages
//   sums      32 registers of each thread
//
// Compile it by `nvcc -arch=sm_90 -c`, or for a later architecture. Made by
// `wmmagen render wmma_gemm_f16_f32_f16_rrrc_scalerowscalecolresidualsilu_predicated8_pointers__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1 --arch sm_90`.
// SPDX-License-Identifier: 0BSD. No conditions: use it, change it, pass it on.

#include <cuda_fp16.h>
#include <mma.h>

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#endif

namespace {

namespace wmma = nvcuda::wmma;

constexpr int A_BITS = 16;     // bits of an element of A or B
constexpr int ACC_BITS = 32;   // bits of an element of the accumulator
constexpr int D_BITS = 16;     // bits of an element of D
constexpr int C_BITS = 16;     // bits of an element of what is added
constexpr int ALIGN_A = 8;     // A's pointer and lda are multiples of so many elements
constexpr int ALIGN_B = 8;     // the same of B and ldb
constexpr int ALIGN_D = 8;     // the same of D and ldd
constexpr int INST_M = 16;     // one matrix instruction: rows of D
constexpr int INST_N = 16;     // columns of D
constexpr int INST_K = 16;     // products that it sums
constexpr int WARPS_M = 2;     // warps of a block, down
constexpr int WARPS_N = 2;     // and across
constexpr int FRAGS_M = 2;     // accumulator fragments of a warp, down
constexpr int FRAGS_N = 2;     // and across
constexpr int K_STEPS = 2;     // instructions along K in one slice
constexpr int STAGES = 3;      // slices in shared memory at a time
constexpr int PAD_A = 8;       // extra elements on a staged row of A
constexpr int PAD_B = 8;       // and of B
constexpr int PAD_D = 4;       // extra elements on a staged column of sums
constexpr int MIN_BLOCKS = 1;  // blocks that a multiprocessor is to hold at a time, which limits registers

constexpr int WARP_M = FRAGS_M * INST_M;         // the tile of D of one warp: rows
constexpr int WARP_N = FRAGS_N * INST_N;         // and columns
constexpr int BLOCK_M = WARPS_M * WARP_M;        // the tile of D of one block: rows
constexpr int BLOCK_N = WARPS_N * WARP_N;        // and columns
constexpr int BLOCK_K = K_STEPS * INST_K;        // one slice of K
constexpr int THREADS = WARPS_M * WARPS_N * 32;  // threads of a block
constexpr int VECTOR = 128 / A_BITS;             // elements of A or B in 16 bytes
constexpr int ACC_VECTOR = 128 / ACC_BITS;       // elements of the accumulator in 16 bytes
constexpr int D_TILE_COLS = INST_M;              // elements in a column of an instruction tile of D

constexpr int A_ROWS = BLOCK_M;                             // the slice of A as it lies: rows
constexpr int A_COLS = BLOCK_K;                             // elements in a row of it
constexpr int B_ROWS = BLOCK_K;                             // the slice of B as it lies: rows
constexpr int B_COLS = BLOCK_N;                             // elements in a row of it
constexpr int LDS_A = A_COLS + PAD_A;                       // leading dimension of A in shared memory
constexpr int LDS_B = B_COLS + PAD_B;                       // and of B
constexpr int A_STEP_M = INST_M * LDS_A;                    // from one staged tile of A to the next on M
constexpr int A_STEP_K = INST_K;                            // and on K
constexpr int B_STEP_N = INST_N;                            // from one staged tile of B to the next on N
constexpr int B_STEP_K = INST_K * LDS_B;                    // and on K
constexpr int A_STAGE = A_ROWS * LDS_A;                     // elements of A in one stage
constexpr int B_STAGE = B_ROWS * LDS_B;                     // and of B
constexpr int B_BASE = STAGES * A_STAGE;                    // where the stages of B begin, in elements
constexpr int A_ROW_VECTORS = A_COLS / ALIGN_A;             // copies that make a row of A's slice
constexpr int B_ROW_VECTORS = B_COLS / ALIGN_B;             // and of B's
constexpr int A_ROW_STEP = THREADS * ALIGN_A / A_COLS;      // rows that the block copies of A's slice at a time
constexpr int B_ROW_STEP = THREADS * ALIGN_B / B_COLS;      // and of B's
constexpr int A_COPIES = A_ROWS * A_ROW_VECTORS / THREADS;  // copies of A that a thread makes per slice
constexpr int B_COPIES = B_ROWS * B_ROW_VECTORS / THREADS;  // and of B

constexpr int LDS_D = D_TILE_COLS + PAD_D;             // leading dimension of a staged tile of sums
constexpr int D_TILE = INST_N * LDS_D;                 // elements of it
constexpr int D_STRIP = FRAGS_M * D_TILE;              // sums that a warp stages at a time: one column of its tiles
constexpr int D_ROW_VECTORS = WARP_M / ALIGN_D;        // stores that make a column of a warp's tile of D
constexpr int D_STORES = INST_N * D_ROW_VECTORS / 32;  // stores of a lane for one column of tiles
constexpr int OUTPUT_BYTES = ALIGN_D * D_BITS / 8;     // one store of D
constexpr int SUMS_BYTES = ALIGN_D * ACC_BITS / 8;     // and the sums for it
constexpr int ADDED_BYTES = ALIGN_D * C_BITS / 8;      // and what is added to it
constexpr int SCALES_BYTES = ALIGN_D * 4;              // and the scales of its rows

constexpr int STAGED_BYTES = STAGES * (A_STAGE + B_STAGE) * A_BITS / 8;        // memory of all stages
constexpr int D_BYTES = WARPS_M * WARPS_N * D_STRIP * ACC_BITS / 8;            // and of all strips, in the same place
constexpr int SHARED_BYTES = STAGED_BYTES > D_BYTES ? STAGED_BYTES : D_BYTES;  // dynamic shared memory of a block

// What the numbers must obey, whoever changes them. The ids are those of `wmmagen rules`.
static_assert((INST_M == 16 && INST_N == 16 && INST_K == 16) ||
                  (INST_M == 32 && INST_N == 8 && INST_K == 16) ||
                  (INST_M == 8 && INST_N == 32 && INST_K == 16),
              "T101 instruction-shape: the instruction has a shape that the hardware has");
static_assert(LDS_A % VECTOR == 0,
              "L201 staged-ldm-a: the leading dimension of the staged A is a multiple of 16 bytes");
static_assert(LDS_B % VECTOR == 0,
              "L202 staged-ldm-b: the leading dimension of the staged B is a multiple of 16 bytes");
static_assert(LDS_D % ACC_VECTOR == 0,
              "L203 staged-ldm-d: the leading dimension of a staged tile of D is a multiple of 16 bytes");
static_assert(WARPS_M * FRAGS_M == 1 || A_STEP_M * A_BITS % 256 == 0,
              "P301 staged-tiles-a: every instruction tile of the staged A along M starts on 256 bits");
static_assert(K_STEPS == 1 || A_STEP_K * A_BITS % 256 == 0,
              "P306 staged-steps-a: every instruction tile of the staged A along K starts on 256 bits");
static_assert(WARPS_N * FRAGS_N == 1 || B_STEP_N * A_BITS % 256 == 0,
              "P302 staged-tiles-b: every instruction tile of the staged B along N starts on 256 bits");
static_assert(K_STEPS == 1 || B_STEP_K * A_BITS % 256 == 0,
              "P307 staged-steps-b: every instruction tile of the staged B along K starts on 256 bits");
static_assert(THREADS <= 1024, "R401 threads-per-block: a block has 1024 threads at most");
static_assert(STAGES >= 2, "C502 cpasync-stages: cp.async fills one buffer while another is read");
static_assert(A_COLS % ALIGN_A == 0, "C511 copy-rows-a: a row of A's slice is a whole number of copies");
static_assert(A_ROWS * A_ROW_VECTORS % THREADS == 0,
              "C521 copy-share-a: the threads share the copies of A's slice evenly");
static_assert(ALIGN_A * A_BITS <= 128, "C531 widest-copy-a: align_a is at most 16 bytes");
static_assert(ALIGN_A * A_BITS >= 32, "C551 cpasync-width-a: cp.async copies at least 4 bytes of A");
static_assert(B_COLS % ALIGN_B == 0, "C512 copy-rows-b: a row of B's slice is a whole number of copies");
static_assert(B_ROWS * B_ROW_VECTORS % THREADS == 0,
              "C522 copy-share-b: the threads share the copies of B's slice evenly");
static_assert(ALIGN_B * A_BITS <= 128, "C532 widest-copy-b: align_b is at most 16 bytes");
static_assert(ALIGN_B * A_BITS >= 32, "C552 cpasync-width-b: cp.async copies at least 4 bytes of B");
static_assert(ALIGN_D * D_BITS <= 128, "X612 widest-store-d: align_d is at most 16 bytes");
#ifdef __CUDA_ARCH__  // the host pass has no architecture
constexpr int SM = __CUDA_ARCH__ / 10;
static_assert(SM >= 80, "C501 cpasync-needs-architecture: cp.async needs sm_80");
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr int MAX_SHARED_BYTES = 232448;             // shared memory that a block can ask for
constexpr int MULTIPROCESSOR_THREADS = 2048;         // threads that a multiprocessor holds at a time
constexpr int MULTIPROCESSOR_BLOCKS = 32;            // and blocks
constexpr int MULTIPROCESSOR_SHARED_BYTES = 233472;  // its shared memory, for all of them
constexpr int RESERVED_SHARED_BYTES = 1024;          // what the system takes of it for each
static_assert(SHARED_BYTES <= MAX_SHARED_BYTES,
              "R402 shared-memory-per-block: what is staged fits into the shared memory of a block");
static_assert(MIN_BLOCKS * THREADS <= MULTIPROCESSOR_THREADS,
              "R403 resident-threads: a multiprocessor can hold the blocks that the launch bounds name");
static_assert(MIN_BLOCKS <= MULTIPROCESSOR_BLOCKS,
              "R404 resident-blocks: a multiprocessor can hold the blocks that the launch bounds name");
static_assert(MIN_BLOCKS == 1 ||
                  MIN_BLOCKS * ((SHARED_BYTES + 127) / 128 * 128 + RESERVED_SHARED_BYTES) <=
                      MULTIPROCESSOR_SHARED_BYTES,
              "R405 resident-shared-memory: a multiprocessor can hold the blocks that the launch bounds name");
#endif

// D is column-major. A lane holds neighbours of a row of what an instruction computes, so that is a tile of D^T, whose
// rows are columns of D: B^T is the first operand, A^T the second. In memory the transpose of a tile is the tile in
// the other order. All other text speaks of A, B and D as they are.
using FragmentA = wmma::fragment<wmma::matrix_b, INST_N, INST_M, INST_K, __half, wmma::col_major>;
using FragmentB = wmma::fragment<wmma::matrix_a, INST_N, INST_M, INST_K, __half, wmma::col_major>;
using Accumulator = wmma::fragment<wmma::accumulator, INST_N, INST_M, INST_K, float>;

// What is told here is compared by >= and never by ==, which ptxas 13.0 takes for true of a clamped number that is less
// than its bound (seen for sm_90).
// How many of `most` elements from `col` on lie in a row of which `cols` are left.
__device__ __forceinline__ int within(int col, int cols, int most) { return max(min(cols - col, most), 0); }

// The same in a matrix of which `rows` and `cols` are left.
__device__ __forceinline__ int inside(int row, int rows, int col, int cols, int most) {
  return row < rows ? within(col, cols, most) : 0;
}

// A vector of which the first `count` elements lie in a matrix: the others are not read, and are zeros.
template <class Vector, class Element>
__device__ __forceinline__ Vector part_of(const Element* from, int count) {
  const int most = sizeof(Vector) / sizeof(Element);
  union {
    Vector vector;
    Element of[most];
  } part;
  if (count >= most) {
    part.vector = *reinterpret_cast<const Vector*>(from);
  } else {
#pragma unroll
    for (int e = 0; e < most; ++e) {
      part.of[e] = e < count ? from[e] : Element{};
    }
  }
  return part.vector;
}

// Stores the first `count` elements of a vector, which lie in a matrix, and no others.
template <class Vector, class Element>
__device__ __forceinline__ void put_part(Element* to, const Vector& vector, int count) {
  const int most = sizeof(Vector) / sizeof(Element);
  if (count >= most) {
    *reinterpret_cast<Vector*>(to) = vector;
  } else {
#pragma unroll
    for (int e = 0; e < most; ++e) {
      if (e < count) to[e] = vector.of[e];
    }
  }
}

// What the text below is written for, beside what the rules ask of all texts.
static_assert(ALIGN_A * A_BITS / 8 == 16, "a copy of A is 16 bytes");
static_assert(ALIGN_B * A_BITS / 8 == 16, "a copy of B is 16 bytes");
static_assert(THREADS % A_ROW_VECTORS == 0, "a thread's copies of A lie in one column");
static_assert(THREADS % B_ROW_VECTORS == 0, "a thread's copies of B lie in one column");
static_assert(K_STEPS % 2 == 0, "the first step of every slice is held in the same one of the two sets of fragments");

// The address of a place in shared memory as cp.async takes it, in bytes within that memory.
__device__ __forceinline__ unsigned shared_address(const __half* place) {
  return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

// Starts a copy of 16 bytes to shared memory that goes past the registers and the first cache.
__device__ __forceinline__ void copy_16(unsigned to, const __half* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// The same of its first `count` elements, of which there may be none; zeros stand for the others.
__device__ __forceinline__ void part_16(unsigned to, const __half* from, int count) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(count * A_BITS / 8)
               : "memory");
}

// The same where all of it is read or nothing, which takes fewer instructions.
__device__ __forceinline__ void whole_16(unsigned to, const __half* from, bool read) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(read ? 16 : 0) : "memory");
}

// Closes the copies that this thread has started into a group. Groups end in the order in which they were closed.
__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's groups are still on their way.
template <int PENDING>
__device__ __forceinline__ void wait_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// What a lane reads of a staged column of sums, 16 bytes at a time at most, and what it makes of them in a column of D.
struct alignas(SUMS_BYTES < 16 ? SUMS_BYTES : 16) Sums {
  float of[ALIGN_D];
};
struct alignas(OUTPUT_BYTES) Outputs {
  __half of[ALIGN_D];
};

// What is added to a lane's part of a column of D, 16 bytes at a time at most.
struct alignas(ADDED_BYTES < 16 ? ADDED_BYTES : 16) Added {
  __half of[ALIGN_D];
};

// What the rows of a lane's part of a column are scaled by.
struct alignas(SCALES_BYTES < 16 ? SCALES_BYTES : 16) Scales {
  float of[ALIGN_D];
};

static_assert(32 % D_ROW_VECTORS == 0, "every store of a lane has the same rows");

// In fewer instructions, and 2 units of the last place of float, which f16 does not show.
__device__ float ratio(float a, float b) { return __fdividef(a, b); }

// A pointer that was loaded, so that the compiler knows that it points to global memory. It could point anywhere else,
// and accesses would be generic ones; what converts it is no instruction of the machine.
template <class Element>
__device__ __forceinline__ Element* in_global(Element* pointer) {
  unsigned long long address;
  asm("cvta.to.global.u64 %0, %1;" : "=l"(address) : "l"(pointer));
  return static_cast<Element*>(__cvta_global_to_generic(address));
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) wmma_gemm_f16_f32_f16_rrrc_scalerowscalecolresidualsilu_predicated8_pointers__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1_kernel(
    const __half* const* __restrict__ As, const __half* const* __restrict__ Bs,
    const __half* const* __restrict__ Rs, const float* const* __restrict__ scale_rows, const float* const* __restrict__ scale_cols, __half* const* __restrict__ Ds,
    int M, int N, int K, int lda, int ldb, int ldr, int ldd) {
  // 1. Place: which tile of D this block and this warp compute.
  //    Blocks are numbered in one dimension, along the rows of D, because a grid's other dimensions end at 65,535.
  const int block = static_cast<int>(blockIdx.x);
  const int blocks_n = (N - 1) / BLOCK_N + 1;
  const int block_row = block / blocks_n * BLOCK_M;
  const int block_col = block % blocks_n * BLOCK_N;

  //    Which product of the batch: the grid counts them in its second dimension, so that no block divides for it. An
  //    array whose matrices are not read is not read either.
  const bool multiplied = K != 0;
  const __half* __restrict__ A = in_global(multiplied ? As[blockIdx.y] : nullptr);
  const __half* __restrict__ B = in_global(multiplied ? Bs[blockIdx.y] : nullptr);
  const __half* R = in_global(Rs[blockIdx.y]);
  const float* __restrict__ scale_row = in_global(scale_rows[blockIdx.y]);
  const float* __restrict__ scale_col = in_global(scale_cols[blockIdx.y]);
  __half* D = in_global(Ds[blockIdx.y]);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int warp_m = warp / WARPS_N;
  const int warp_n = warp % WARPS_N;
  const int warp_row = block_row + warp_m * WARP_M;
  const int warp_col = block_col + warp_n * WARP_N;
  __half* d_tile = D + static_cast<long long>(warp_col) * ldd + warp_row;  // offsets can pass 2^31
  const int slices = K / BLOCK_K + (K % BLOCK_K != 0);
  // At an edge of D a block goes on as if D did, so that every lane reaches every barrier and every matrix call. The
  // first `inner` slices lie inside A and B along K, and all of their rows and columns do where D goes on behind the
  // block. Elsewhere each copy is looked at: zeros stand for what lies outside, which is not read. Along K they are
  // summed; nobody stores what becomes of the others.
  const int m_left = M - block_row;
  const int n_left = N - block_col;
  const bool whole = m_left >= BLOCK_M && n_left >= BLOCK_N;
  const int inner = K / BLOCK_K;

  // 2. Accumulators: the warp's tile of D stays in registers from the first slice of K to the last.
  Accumulator acc[FRAGS_M][FRAGS_N];
#pragma unroll
  for (int i = 0; i < FRAGS_M; ++i) {
#pragma unroll
    for (int j = 0; j < FRAGS_N; ++j) {
      wmma::fill_fragment(acc[i][j], 0.0f);
    }
  }

  // 3. Staging. In every slice a thread makes the same A_COPIES and B_COPIES copies, so their places are worked out
  //    once: `*_from` walks along K in global memory, `*_to` is the address within the first stage.
  extern __shared__ __align__(128) __half shared[];
  const long long b_slice = static_cast<long long>(BLOCK_K) * ldb;

  // Its copies of A lie in one column, A_ROW_STEP rows apart, so the place of the first one tells the others.
  const int a_row = thread / A_ROW_VECTORS;
  const int a_col = thread % A_ROW_VECTORS * ALIGN_A;
  const __half* a_from = A + static_cast<long long>(block_row + a_row) * lda + a_col;
  const long long a_step = static_cast<long long>(A_ROW_STEP) * lda;
  const unsigned a_to = shared_address(shared + a_row * LDS_A + a_col);

  // Its copies of B lie in one column, B_ROW_STEP rows apart, so the place of the first one tells the others.
  const int b_row = thread / B_ROW_VECTORS;
  const int b_col = thread % B_ROW_VECTORS * ALIGN_B;
  const __half* b_from = B + static_cast<long long>(b_row) * ldb + block_col + b_col;
  const long long b_step = static_cast<long long>(B_ROW_STEP) * ldb;
  const unsigned b_to = shared_address(shared + B_BASE + b_row * LDS_B + b_col);

  // Starts a part of the copies of the next slice into a stage: one part beside the products of each step of K but the
  // last, before which their group is closed. Copies that come all at once keep the loads of fragments waiting.
  const auto copy_part = [&](int stage, int part) {
#pragma unroll
    for (int i = 0; i < A_COPIES; ++i) {
      if (i * (K_STEPS - 1) / A_COPIES == part) {
        copy_16(a_to + (stage * A_STAGE + i * A_ROW_STEP * LDS_A) * A_BITS / 8, a_from + i * a_step);
      }
    }
#pragma unroll
    for (int i = 0; i < B_COPIES; ++i) {
      if (i * (K_STEPS - 1) / B_COPIES == part) {
        copy_16(b_to + (stage * B_STAGE + i * B_ROW_STEP * LDS_B) * A_BITS / 8, b_from + i * b_step);
      }
    }
    if (part + 2 == K_STEPS) {
      a_from += BLOCK_K;
      b_from += b_slice;
    }
  };
  // The same at an edge of D. Such a slice lies inside A and B along K, so rows that end within a copy all do so in the
  // same column.
  const auto copy_part_at_edge = [&](int stage, int part) {
#pragma unroll
    for (int i = 0; i < A_COPIES; ++i) {
      if (i * (K_STEPS - 1) / A_COPIES == part) {
        const bool read = a_row + i * A_ROW_STEP < m_left;
        whole_16(a_to + (stage * A_STAGE + i * A_ROW_STEP * LDS_A) * A_BITS / 8, a_from + i * a_step, read);
      }
    }
#pragma unroll
    for (int i = 0; i < B_COPIES; ++i) {
      if (i * (K_STEPS - 1) / B_COPIES == part) {
        const int count = within(b_col, n_left, ALIGN_B);
        part_16(b_to + (stage * B_STAGE + i * B_ROW_STEP * LDS_B) * A_BITS / 8, b_from + i * b_step, count);
      }
    }
    if (part + 2 == K_STEPS) {
      a_from += BLOCK_K;
      b_from += b_slice;
    }
  };

  // Starts all copies of any slice at once. Where a row ends within a copy, a part of it is read.
  const auto copy_edge = [&](int stage, int slice) {
    const int depth = K - slice * BLOCK_K;
    if (depth < BLOCK_K && depth % ALIGN_A != 0) {
#pragma unroll
      for (int i = 0; i < A_COPIES; ++i) {
        const int count = inside(a_row + i * A_ROW_STEP, m_left, a_col, depth, ALIGN_A);
        part_16(a_to + (stage * A_STAGE + i * A_ROW_STEP * LDS_A) * A_BITS / 8, a_from + i * a_step, count);
      }
    } else {
#pragma unroll
      for (int i = 0; i < A_COPIES; ++i) {
        const int count = inside(a_row + i * A_ROW_STEP, m_left, a_col, depth, ALIGN_A);
        whole_16(a_to + (stage * A_STAGE + i * A_ROW_STEP * LDS_A) * A_BITS / 8, a_from + i * a_step, count > 0);
      }
    }
    a_from += BLOCK_K;
    if (n_left < BLOCK_N && n_left % ALIGN_B != 0) {
#pragma unroll
      for (int i = 0; i < B_COPIES; ++i) {
        const int count = inside(b_row + i * B_ROW_STEP, depth, b_col, n_left, ALIGN_B);
        part_16(b_to + (stage * B_STAGE + i * B_ROW_STEP * LDS_B) * A_BITS / 8, b_from + i * b_step, count);
      }
    } else {
#pragma unroll
      for (int i = 0; i < B_COPIES; ++i) {
        const int count = inside(b_row + i * B_ROW_STEP, depth, b_col, n_left, ALIGN_B);
        whole_16(b_to + (stage * B_STAGE + i * B_ROW_STEP * LDS_B) * A_BITS / 8, b_from + i * b_step, count > 0);
      }
    }
    b_from += b_slice;
  };

  // Two sets of operand fragments: while a step is multiplied, the next one is loaded into the other set, also where it
  // is the first step of the next slice. Stages are offsets from one base: an array of pointers would hide from the
  // compiler that they are shared memory, and the loads would become generic ones.
  FragmentA a[2][FRAGS_M];
  FragmentB b[2][FRAGS_N];
  const auto load_step = [&](int stage, int k) {
    const __half* a_tile = shared + stage * A_STAGE + warp_m * FRAGS_M * A_STEP_M;
    const __half* b_tile = shared + B_BASE + stage * B_STAGE + warp_n * FRAGS_N * B_STEP_N;
#pragma unroll
    for (int i = 0; i < FRAGS_M; ++i) {
      wmma::load_matrix_sync(a[k % 2][i], a_tile + i * A_STEP_M + k * A_STEP_K, LDS_A);
    }
#pragma unroll
    for (int j = 0; j < FRAGS_N; ++j) {
      wmma::load_matrix_sync(b[k % 2][j], b_tile + j * B_STEP_N + k * B_STEP_K, LDS_B);
    }
  };

  // 4. Prologue: the first STAGES - 1 slices are on their way. A group is closed for every stage, an empty one where K
  //    has no such slice, so that counting groups is counting slices.
  //    Where these few lie at an edge, none is worth a text of its own.
#pragma unroll 1
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (stage < slices) {
      if (whole && stage < inner) {
#pragma unroll
        for (int part = 0; part < K_STEPS - 1; ++part) {
          copy_part(stage, part);
        }
      } else {
        copy_edge(stage, stage);
      }
    }
    close_group();
  }
  wait_groups<STAGES - 2>();
  __syncthreads();
  if (slices > 0) {  // without a slice, nothing was copied
    load_step(0, 0);
  }

  //    Main loop. While the last step of a slice is multiplied, the first one of the next is loaded. The barrier before
  //    that says two things: the next slice has landed for every thread, and every warp has loaded the last step of
  //    this one, whose stage is filled during the next. Behind the last slice its own first step is loaded again, and
  //    not used: a condition around the loads would cost instructions in every slice.
  int read_stage = 0;
  int fill_stage = STAGES - 1;
  //    Three loops in a row, so that no slice is asked what only others have to answer. In the first two, a whole slice
  //    is copied beside the products: the one is that of blocks within D, the other of those at an edge of it. The last
  //    loop multiplies what is on its way by then, and copies the part of a slice that may stand at the end of K.
  int slice = 0;
  const int copying = inner - (STAGES - 1);  // slices beside whose products a whole one is copied
  const int copying_within = whole ? copying : 0;
  for (; slice < copying_within; ++slice) {
    const int next_stage = read_stage + 1 == STAGES ? 0 : read_stage + 1;
#pragma unroll
    for (int k = 0; k < K_STEPS; ++k) {
      if (k + 1 < K_STEPS) {
        load_step(read_stage, k + 1);
        copy_part(fill_stage, k);
      } else {
        close_group();
        wait_groups<STAGES - 2>();
        __syncthreads();
        load_step(next_stage, 0);
      }
#pragma unroll
      for (int i = 0; i < FRAGS_M; ++i) {
#pragma unroll
        for (int j = 0; j < FRAGS_N; ++j) {
          wmma::mma_sync(acc[i][j], b[k % 2][j], a[k % 2][i], acc[i][j]);
        }
      }
    }
    read_stage = next_stage;
    fill_stage = fill_stage + 1 == STAGES ? 0 : fill_stage + 1;
  }
  for (; slice < copying; ++slice) {
    const int next_stage = read_stage + 1 == STAGES ? 0 : read_stage + 1;
#pragma unroll
    for (int k = 0; k < K_STEPS; ++k) {
      if (k + 1 < K_STEPS) {
        load_step(read_stage, k + 1);
        copy_part_at_edge(fill_stage, k);
      } else {
        close_group();
        wait_groups<STAGES - 2>();
        __syncthreads();
        load_step(next_stage, 0);
      }
#pragma unroll
      for (int i = 0; i < FRAGS_M; ++i) {
#pragma unroll
        for (int j = 0; j < FRAGS_N; ++j) {
          wmma::mma_sync(acc[i][j], b[k % 2][j], a[k % 2][i], acc[i][j]);
        }
      }
    }
    read_stage = next_stage;
    fill_stage = fill_stage + 1 == STAGES ? 0 : fill_stage + 1;
  }
  for (; slice < slices; ++slice) {
    const int after = read_stage + 1 == STAGES ? 0 : read_stage + 1;
    const int next_stage = slice + 1 < slices ? after : read_stage;
    if (slice + STAGES - 1 < slices) {
      copy_edge(fill_stage, slice + STAGES - 1);
    }
#pragma unroll
    for (int k = 0; k < K_STEPS; ++k) {
      if (k + 1 < K_STEPS) {
        load_step(read_stage, k + 1);
      } else {
        close_group();
        wait_groups<STAGES - 2>();
        __syncthreads();
        load_step(next_stage, 0);
      }
#pragma unroll
      for (int i = 0; i < FRAGS_M; ++i) {
#pragma unroll
        for (int j = 0; j < FRAGS_N; ++j) {
          wmma::mma_sync(acc[i][j], b[k % 2][j], a[k % 2][i], acc[i][j]);
        }
      }
    }
    read_stage = next_stage;
    fill_stage = fill_stage + 1 == STAGES ? 0 : fill_stage + 1;
  }

  // 5. Epilogue: each warp's tiles of D pass through shared memory, one column of tiles at a time. Which lane holds
  //    which element of a fragment is not specified; read back from there, columns can be converted and stored in
  //    vectors.
  const __half* r_tile = R + static_cast<long long>(warp_row) * ldr + warp_col;

  //    Every store of a lane has the same rows, so what belongs to them is loaded once.
  const int own_row = warp_row + thread % 32 % D_ROW_VECTORS * ALIGN_D;
  const Scales scale_of_rows = part_of<Scales>(scale_row + own_row, inside(0, 1, own_row, M, ALIGN_D));
  const int d_rows = m_left - warp_m * WARP_M;  // what is left of D from this warp's tile on; negative behind it
  const int d_cols = n_left - warp_n * WARP_N;
  __syncthreads();  // every warp has read the last slice, which lay where the strips lie now
  float* strip = reinterpret_cast<float*>(shared) + warp * D_STRIP;
  const int lane = thread % 32;
#pragma unroll
  for (int j = 0; j < FRAGS_N; ++j) {
#pragma unroll
    for (int i = 0; i < FRAGS_M; ++i) {
      wmma::store_matrix_sync(strip + i * D_TILE, acc[i][j], LDS_D, wmma::mem_row_major);
    }
    __syncwarp();  // a lane reads what others have stored
#pragma unroll
    for (int s = 0; s < D_STORES; ++s) {
      const int strip_col = (lane + s * 32) / D_ROW_VECTORS;
      const int row = (lane + s * 32) % D_ROW_VECTORS * ALIGN_D;
      const int col = j * INST_N + strip_col;
      const int count = inside(col, d_cols, row, d_rows, ALIGN_D);
      const Sums sums =
          *reinterpret_cast<const Sums*>(strip + row / INST_M * D_TILE + strip_col * LDS_D + row % INST_M);
      Outputs out;
      Added r;
#pragma unroll
      for (int e = 0; e < ALIGN_D; ++e) {
        if (e < count) r.of[e] = r_tile[static_cast<long long>(row + e) * ldr + col];
      }
      const float scale_of_column = col < d_cols ? scale_col[warp_col + col] : 0.0f;
#pragma unroll
      for (int e = 0; e < ALIGN_D; ++e) {
        float value = sums.of[e];
        value = value * scale_of_rows.of[e];        // scalerow
        value = value * scale_of_column;            // scalecol
        value = value + __half2float(r.of[e]);      // residual
        value = ratio(value, 1.0f + expf(-value));  // silu
        out.of[e] = __float2half(value);
      }
      put_part(d_tile + static_cast<long long>(col) * ldd + row, out, count);
    }
    __syncwarp();  // the strip is read before the next column of tiles overwrites it
  }
}

#ifndef __CUDACC_RTC__

#ifndef WMMAGEN_STATUS
// What a launcher answers. Every launcher made by wmmagen has this type; where two meet, it is declared once. A later
// version may add values at the end, so this number tells how many are known.
#define WMMAGEN_STATUS 8
typedef enum wmmagen_status {
  WMMAGEN_OK = 0,                     // launched, or nothing to do
  WMMAGEN_BAD_SIZE = 1,               // a size is negative, no multiple of the block tile, or makes too many blocks; or so is the batch
  WMMAGEN_BAD_LEADING_DIMENSION = 2,  // a leading dimension or a stride is less than a row or a matrix, or not aligned as promised
  WMMAGEN_BAD_POINTER = 3,            // a pointer or an array of them is null, misaligned, or that of a C where D must not be
  WMMAGEN_NO_SHARED_MEMORY = 4,       // the device's blocks have less shared memory than this kernel needs
  WMMAGEN_NOT_LAUNCHED = 5,           // CUDA refused the launch
  WMMAGEN_NO_DEVICE = 6,              // no CUDA device, no driver, or a driver too old for this build
  WMMAGEN_NO_CODE = 7                 // the device runs no code of this build
} wmmagen_status;
#elif WMMAGEN_STATUS < 8
#error "a header of an older wmmagen was included before this one: include this one first"
#endif

namespace {

constexpr int FLAGS = 64;  // devices that have a flag

// Devices that were asked and agreed. Nothing else is kept between calls.
std::atomic<unsigned long long> prepared{0};

// What an error of CUDA is among the answers. Its status tells it, so whoever asks CUDA next is not told once more.
wmmagen_status told(cudaError_t error) {
  cudaGetLastError();
  switch (error) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorInitializationError:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorDevicesUnavailable:
      return WMMAGEN_NO_DEVICE;
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidKernelImage:
    case cudaErrorInvalidPtx:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
      return WMMAGEN_NO_CODE;
    default:
      return WMMAGEN_NOT_LAUNCHED;
  }
}

// Asks the current device, once, whether it runs this kernel, and for its shared memory, which may be more than the 48 KB
// that every block has. Threads may ask at the same time, and a stream may be capturing: nothing here is work for a stream.
wmmagen_status prepare() {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return told(error);
  const unsigned long long flag = device < FLAGS ? 1ull << device : 0;  // those beyond are asked every time
  if (prepared.load(std::memory_order_acquire) & flag) return WMMAGEN_OK;

  cudaFuncAttributes attributes;
  error = cudaFuncGetAttributes(&attributes, wmma_gemm_f16_f32_f16_rrrc_scalerowscalecolresidualsilu_predicated8_pointers__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1_kernel);
  if (error != cudaSuccess) return told(error);
  error = cudaFuncSetAttribute(wmma_gemm_f16_f32_f16_rrrc_scalerowscalecolresidualsilu_predicated8_pointers__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
  if (error == cudaErrorInvalidValue) {
    cudaGetLastError();
    return WMMAGEN_NO_SHARED_MEMORY;
  }
  if (error != cudaSuccess) return told(error);
  prepared.fetch_or(flag, std::memory_order_release);
  return WMMAGEN_OK;
}

}  // namespace

// What a status means, in words.
extern "C" const char* wmma_gemm_f16_f32_f16_rrrc_scalerowscalecolresidualsilu_predicated8_pointers__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1_status_text(wmmagen_status status) {
  switch (status) {
    case WMMAGEN_OK:
      return "launched, or nothing to do";
    case WMMAGEN_BAD_SIZE:
      return "a size is negative, no multiple of the block tile, or makes too many blocks; or so is the batch";
    case WMMAGEN_BAD_LEADING_DIMENSION:
      return "a leading dimension or a stride is less than a row or a matrix, or not aligned as promised";
    case WMMAGEN_BAD_POINTER:
      return "a pointer or an array of them is null, misaligned, or that of a C where D must not be";
    case WMMAGEN_NO_SHARED_MEMORY:
      return "the device's blocks have less shared memory than this kernel needs";
    case WMMAGEN_NOT_LAUNCHED:
      return "CUDA refused the launch";
    case WMMAGEN_NO_DEVICE:
      return "no CUDA device, no driver, or a driver too old for this build";
    case WMMAGEN_NO_CODE:
      return "the device runs no code of this build";
  }
  return "no status that this launcher knows";
}

// What the launcher would answer on the current device, as far as can be known before the launch.
extern "C" wmmagen_status wmma_gemm_f16_f32_f16_rrrc_scalerowscalecolresidualsilu_predicated8_pointers__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1_supports(
    const void* const* A, const void* const* B, const void* const* R, const void* const* scale_row, const void* const* scale_col, void* const* D, int M, int N, int K, int lda, int ldb, int ldr, int ldd, int batch) {
  // N800: sizes are not negative
  if (M < 0 || N < 0 || K < 0) return WMMAGEN_BAD_SIZE;
  // N805: the blocks fit into one grid
  if (N != 0 && M / BLOCK_M + (M % BLOCK_M == 0 ? 0 : 1) > 2147483647 / (N == 0 ? 1 : N / BLOCK_N + (N % BLOCK_N == 0 ? 0 : 1))) return WMMAGEN_BAD_SIZE;
  // N811: a batch has 0 to 65535 products
  if (batch < 0 || batch > 65535) return WMMAGEN_BAD_SIZE;
  // L221: lda is a multiple of ALIGN_A elements
  if (lda % ALIGN_A != 0) return WMMAGEN_BAD_LEADING_DIMENSION;
  // L222: ldb is a multiple of ALIGN_B elements
  if (ldb % ALIGN_B != 0) return WMMAGEN_BAD_LEADING_DIMENSION;
  // L223: ldd is a multiple of ALIGN_D elements
  if (ldd % ALIGN_D != 0) return WMMAGEN_BAD_LEADING_DIMENSION;
  // L226: ldr is a multiple of ALIGN_D elements
  if (ldr % ALIGN_D != 0) return WMMAGEN_BAD_LEADING_DIMENSION;
  // L241: lda is at least the extent of a row of A
  if (lda < K) return WMMAGEN_BAD_LEADING_DIMENSION;
  // L242: ldb is at least the extent of a row of B
  if (ldb < N) return WMMAGEN_BAD_LEADING_DIMENSION;
  // L246: ldr is at least the N columns of R
  if (ldr < N) return WMMAGEN_BAD_LEADING_DIMENSION;
  // L247: ldd is at least the M rows of D
  if (ldd < M) return WMMAGEN_BAD_LEADING_DIMENSION;

  // Without M or N, D has no element, and without a batch there is no D.
  if (M == 0 || N == 0 || batch == 0) return WMMAGEN_OK;

  const std::size_t A_address = reinterpret_cast<std::size_t>(A);
  const std::size_t B_address = reinterpret_cast<std::size_t>(B);
  const std::size_t R_address = reinterpret_cast<std::size_t>(R);
  const std::size_t scale_row_address = reinterpret_cast<std::size_t>(scale_row);
  const std::size_t scale_col_address = reinterpret_cast<std::size_t>(scale_col);
  const std::size_t D_address = reinterpret_cast<std::size_t>(D);
  // P341: the array of pointers to A is aligned to 8 bytes
  if (A_address % 8 != 0) return WMMAGEN_BAD_POINTER;
  // P342: the array of pointers to B is aligned to 8 bytes
  if (B_address % 8 != 0) return WMMAGEN_BAD_POINTER;
  // P343: the array of pointers to D is aligned to 8 bytes
  if (D_address % 8 != 0) return WMMAGEN_BAD_POINTER;
  // P345: the array of pointers to R is aligned to 8 bytes
  if (R_address % 8 != 0) return WMMAGEN_BAD_POINTER;
  // P348: the array of pointers to scale_row is aligned to 8 bytes
  if (scale_row_address % 8 != 0) return WMMAGEN_BAD_POINTER;
  // P349: the array of pointers to scale_col is aligned to 8 bytes
  if (scale_col_address % 8 != 0) return WMMAGEN_BAD_POINTER;
  // P326: a matrix that is read or written is not null
  if (D_address == 0 || (K != 0 && (A_address == 0 || B_address == 0))) return WMMAGEN_BAD_POINTER;
  // P391: R, which is read, is not null
  if (R_address == 0) return WMMAGEN_BAD_POINTER;
  // P394: scale_row, which is read, is not null
  if (scale_row_address == 0) return WMMAGEN_BAD_POINTER;
  // P395: scale_col, which is read, is not null
  if (scale_col_address == 0) return WMMAGEN_BAD_POINTER;
  // P381: where R is D, it has D's ldd
  if (R_address == D_address && ldr != ldd) return WMMAGEN_BAD_POINTER;
  // P386: where R is D, it has D's layout
  if (R_address == D_address) return WMMAGEN_BAD_POINTER;

  return prepare();
}

// Starts D = A * B and its epilogue on `stream`. Pointers are device pointers; sizes and leading dimensions are in elements. Where the
// contract is broken it says so and launches nothing; it prints nothing and ends nothing.
extern "C" wmmagen_status wmma_gemm_f16_f32_f16_rrrc_scalerowscalecolresidualsilu_predicated8_pointers__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1(
    const void* const* A, const void* const* B, const void* const* R, const void* const* scale_row, const void* const* scale_col, void* const* D, int M, int N, int K, int lda, int ldb, int ldr, int ldd, int batch, cudaStream_t stream) {
  const wmmagen_status status = wmma_gemm_f16_f32_f16_rrrc_scalerowscalecolresidualsilu_predicated8_pointers__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1_supports(A, B, R, scale_row, scale_col, D, M, N, K, lda, ldb, ldr, ldd, batch);
  if (status != WMMAGEN_OK || M == 0 || N == 0 || batch == 0) return status;

  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(static_cast<unsigned>((M / BLOCK_M + (M % BLOCK_M == 0 ? 0 : 1)) * (N / BLOCK_N + (N % BLOCK_N == 0 ? 0 : 1))), static_cast<unsigned>(batch));
  launch.blockDim = dim3(THREADS);
  launch.dynamicSmemBytes = SHARED_BYTES;
  launch.stream = stream;
  const auto start = [&] {
    return cudaLaunchKernelEx(&launch, wmma_gemm_f16_f32_f16_rrrc_scalerowscalecolresidualsilu_predicated8_pointers__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1_kernel,
                              reinterpret_cast<const __half* const*>(A), reinterpret_cast<const __half* const*>(B),
                              reinterpret_cast<const __half* const*>(R), reinterpret_cast<const float* const*>(scale_row), reinterpret_cast<const float* const*>(scale_col), reinterpret_cast<__half* const*>(D),
                              M, N, K, lda, ldb, ldr, ldd);
  };
  cudaError_t error = start();
  if (error == cudaErrorInvalidValue) {
    // A new context of the device, behind cudaDeviceReset for example, has forgotten what the flag remembers.
    cudaGetLastError();
    prepared.store(0);
    const wmmagen_status again = prepare();
    if (again != WMMAGEN_OK) return again;
    error = start();
  }
  return error == cudaSuccess ? WMMAGEN_OK : told(error);
}

#endif  // __CUDACC_RTC__
