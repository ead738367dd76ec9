// wmma_gemm_bf16_f32_bf16_rccr_linearbiascolgelu_exact8__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1
//
// D = A * B and its epilogue on tensor cores. A (M x K) and B (K x N) are bf16, row-major and column-major;
// D (M x N) is bf16, row-major. Sums are f32.
// Each element of D goes through these steps, in float, and is rounded once; acc is what came before:
//   linear   beta==0?alpha*acc:alpha*acc+beta*c
//   biascol  acc+bias_col
//   gelu     acc*cdf(acc)
// C (M x N, column-major) is bf16.
// bias_col has N elements, one for each column of D, in bf16.
//
//   sizes     M, N, K: multiples of 64, 64, 32; lda, ldb, ldc, ldd: of 8, 8, 8, 8
//   block     64 x 64 of D, 32 of K at a time
//   threads   128: 2 x 2 warps, each 32 x 32 of D
//   shared    30720 bytes, 3 stages
//   sums      32 registers of each thread
//
// Compile it by `nvcc -arch=sm_80 -c`, or for a later architecture. Made by
// `wmmagen render wmma_gemm_bf16_f32_bf16_rccr_linearbiascolgelu_exact8__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1 --arch sm_80`.
// SPDX-License-Identifier: 0BSD. No conditions: use it, change it, pass it on.

#include <cuda_bf16.h>
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
constexpr int PAD_D = 4;       // extra elements on a staged row of sums
constexpr int MIN_BLOCKS = 1;  // blocks that a multiprocessor is to hold at a time, which limits registers

constexpr int WARP_M = FRAGS_M * INST_M;         // the tile of D of one warp: rows
constexpr int WARP_N = FRAGS_N * INST_N;         // and columns
constexpr int BLOCK_M = WARPS_M * WARP_M;        // the tile of D of one block: rows
constexpr int BLOCK_N = WARPS_N * WARP_N;        // and columns
constexpr int BLOCK_K = K_STEPS * INST_K;        // one slice of K
constexpr int THREADS = WARPS_M * WARPS_N * 32;  // threads of a block
constexpr int VECTOR = 128 / A_BITS;             // elements of A or B in 16 bytes
constexpr int ACC_VECTOR = 128 / ACC_BITS;       // elements of the accumulator in 16 bytes
constexpr int D_TILE_COLS = INST_N;              // elements in a row of an instruction tile of D

constexpr int A_ROWS = BLOCK_M;                             // the slice of A as it lies: rows
constexpr int A_COLS = BLOCK_K;                             // elements in a row of it
constexpr int B_ROWS = BLOCK_N;                             // the slice of B as it lies: rows
constexpr int B_COLS = BLOCK_K;                             // elements in a row of it
constexpr int LDS_A = A_COLS + PAD_A;                       // leading dimension of A in shared memory
constexpr int LDS_B = B_COLS + PAD_B;                       // and of B
constexpr int A_STEP_M = INST_M * LDS_A;                    // from one staged tile of A to the next on M
constexpr int A_STEP_K = INST_K;                            // and on K
constexpr int B_STEP_N = INST_N * LDS_B;                    // from one staged tile of B to the next on N
constexpr int B_STEP_K = INST_K;                            // and on K
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
constexpr int D_TILE = INST_M * LDS_D;                 // elements of it
constexpr int D_STRIP = FRAGS_N * D_TILE;              // sums that a warp stages at a time: one row of its tiles
constexpr int D_ROW_VECTORS = WARP_N / ALIGN_D;        // stores that make a row of a warp's tile of D
constexpr int D_STORES = INST_M * D_ROW_VECTORS / 32;  // stores of a lane for one row of tiles
constexpr int OUTPUT_BYTES = ALIGN_D * D_BITS / 8;     // one store of D
constexpr int SUMS_BYTES = ALIGN_D * ACC_BITS / 8;     // and the sums for it
constexpr int ADDED_BYTES = ALIGN_D * C_BITS / 8;      // and what is added to it

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
static_assert(SM >= 80, "T131 type-needs-architecture: operands of this type need sm_80");
static_assert(SM >= 80, "C501 cpasync-needs-architecture: cp.async needs sm_80");
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 800
constexpr int MAX_SHARED_BYTES = 166912;             // shared memory that a block can ask for
constexpr int MULTIPROCESSOR_THREADS = 2048;         // threads that a multiprocessor holds at a time
constexpr int MULTIPROCESSOR_BLOCKS = 32;            // and blocks
constexpr int MULTIPROCESSOR_SHARED_BYTES = 167936;  // its shared memory, for all of them
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

using FragmentA = wmma::fragment<wmma::matrix_a, INST_M, INST_N, INST_K, __nv_bfloat16, wmma::row_major>;
using FragmentB = wmma::fragment<wmma::matrix_b, INST_M, INST_N, INST_K, __nv_bfloat16, wmma::col_major>;
using Accumulator = wmma::fragment<wmma::accumulator, INST_M, INST_N, INST_K, float>;

// What the text below is written for, beside what the rules ask of all texts.
static_assert(INST_M == 16 && INST_N == 16 && INST_K == 16, "fragments are those of m16n16k16");

// Fragments of A and B from shared memory, by the instruction that wmma::load_matrix_sync stands for: with the call the
// compiler loses sight of which memory is meant, and makes generic loads. The registers of the instruction are the
// storage of the fragment, in their order, as they are for the call.
__device__ __forceinline__ void load_fragment(FragmentA& fragment, const __nv_bfloat16* tile, int ld) {
  unsigned held[4];
  static_assert(sizeof(held) == sizeof(fragment.x), "the registers are the storage");
  asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(held[0]), "=r"(held[1]), "=r"(held[2]), "=r"(held[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(tile))), "r"(ld)
               : "memory");
  memcpy(fragment.x, held, sizeof(held));
}

__device__ __forceinline__ void load_fragment(FragmentB& fragment, const __nv_bfloat16* tile, int ld) {
  unsigned held[4];
  static_assert(sizeof(held) == sizeof(fragment.x), "the registers are the storage");
  asm volatile("wmma.load.b.sync.aligned.col.m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(held[0]), "=r"(held[1]), "=r"(held[2]), "=r"(held[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(tile))), "r"(ld)
               : "memory");
  memcpy(fragment.x, held, sizeof(held));
}

// What the text below is written for, beside what the rules ask of all texts.
static_assert(ALIGN_A * A_BITS / 8 == 16, "a copy of A is 16 bytes");
static_assert(ALIGN_B * A_BITS / 8 == 16, "a copy of B is 16 bytes");
static_assert(THREADS % A_ROW_VECTORS == 0, "a thread's copies of A lie in one column");
static_assert(THREADS % B_ROW_VECTORS == 0, "a thread's copies of B lie in one column");
static_assert(K_STEPS % 2 == 0, "the first step of every slice is held in the same one of the two sets of fragments");

// The address of a place in shared memory as cp.async takes it, in bytes within that memory.
__device__ __forceinline__ unsigned shared_address(const __nv_bfloat16* place) {
  return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

// Starts a copy of 16 bytes to shared memory that goes past the registers and the first cache.
__device__ __forceinline__ void copy_16(unsigned to, const __nv_bfloat16* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Closes the copies that this thread has started into a group. Groups end in the order in which they were closed.
__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's groups are still on their way.
template <int PENDING>
__device__ __forceinline__ void wait_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// What a lane reads of a staged row of sums, 16 bytes at a time at most, and what it makes of them in a row of D.
struct alignas(SUMS_BYTES < 16 ? SUMS_BYTES : 16) Sums {
  float of[ALIGN_D];
};
struct alignas(OUTPUT_BYTES) Outputs {
  __nv_bfloat16 of[ALIGN_D];
};

// What is added to a lane's part of a row of D, 16 bytes at a time at most.
struct alignas(ADDED_BYTES < 16 ? ADDED_BYTES : 16) Added {
  __nv_bfloat16 of[ALIGN_D];
};

static_assert(32 % D_ROW_VECTORS == 0, "every store of a lane has the same columns");

// The normal distribution function. Its smaller side is 2^(-x^2 log2(e) / 2) times t and a polynomial p of it, where
// t = 1 / (1 + 0.34375 |x|). Far below 0 this keeps its digits, where 1 + erff cancels.
__device__ float normal_cdf(float x) {
  float t;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(fmaf(0.34375f, fabsf(x), 1.0f)));
  float p = -0.0278041288f;
  p = fmaf(p, t, 0.143869773f);
  p = fmaf(p, t, -0.271866113f);
  p = fmaf(p, t, 0.19124338f);
  p = fmaf(p, t, -0.0396557041f);
  p = fmaf(p, t, 0.112875551f);
  p = fmaf(p, t, 0.116660349f);
  p = fmaf(p, t, 0.137558773f);
  p = fmaf(p, t, 0.137118146f);
  const float smaller_side = exp2f(-0.721347511f * (x * x)) * (p * t);
  return x < 0.0f ? smaller_side : 1.0f - smaller_side;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) wmma_gemm_bf16_f32_bf16_rccr_linearbiascolgelu_exact8__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1_kernel(
    const __nv_bfloat16* __restrict__ A, const __nv_bfloat16* __restrict__ B,
    const __nv_bfloat16* C,
    const __nv_bfloat16* __restrict__ bias_col,
    __nv_bfloat16* D,
    int N, int K, int lda, int ldb, int ldc, int ldd,
    float alpha, float beta) {
  // 1. Place: which tile of D this block and this warp compute.
  //    Blocks are numbered in one dimension, along the rows of D, because a grid's other dimensions end at 65,535.
  const int block = static_cast<int>(blockIdx.x);
  const int blocks_n = N / BLOCK_N;
  const int block_row = block / blocks_n * BLOCK_M;
  const int block_col = block % blocks_n * BLOCK_N;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int warp_m = warp / WARPS_N;
  const int warp_n = warp % WARPS_N;
  const int warp_row = block_row + warp_m * WARP_M;
  const int warp_col = block_col + warp_n * WARP_N;
  __nv_bfloat16* d_tile = D + static_cast<long long>(warp_row) * ldd + warp_col;  // offsets can pass 2^31
  // Where alpha is 0, no product counts, and neither A nor B is read: they may be null, or hold a NaN.
  const int slices = alpha == 0 ? 0 : K / BLOCK_K;

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
  extern __shared__ __align__(128) __nv_bfloat16 shared[];

  // Its copies of A lie in one column, A_ROW_STEP rows apart, so the place of the first one tells the others.
  const int a_row = thread / A_ROW_VECTORS;
  const int a_col = thread % A_ROW_VECTORS * ALIGN_A;
  const __nv_bfloat16* a_from = A + static_cast<long long>(block_row + a_row) * lda + a_col;
  const long long a_step = static_cast<long long>(A_ROW_STEP) * lda;
  const unsigned a_to = shared_address(shared + a_row * LDS_A + a_col);

  // Its copies of B lie in one column, B_ROW_STEP rows apart, so the place of the first one tells the others.
  const int b_row = thread / B_ROW_VECTORS;
  const int b_col = thread % B_ROW_VECTORS * ALIGN_B;
  const __nv_bfloat16* b_from = B + static_cast<long long>(block_col + b_row) * ldb + b_col;
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
      b_from += BLOCK_K;
    }
  };

  // Two sets of operand fragments: while a step is multiplied, the next one is loaded into the other set, also where it
  // is the first step of the next slice. Stages are offsets from one base: an array of pointers would hide from the
  // compiler that they are shared memory, and the loads would become generic ones.
  FragmentA a[2][FRAGS_M];
  FragmentB b[2][FRAGS_N];
  const auto load_step = [&](int stage, int k) {
    const __nv_bfloat16* a_tile = shared + stage * A_STAGE + warp_m * FRAGS_M * A_STEP_M;
    const __nv_bfloat16* b_tile = shared + B_BASE + stage * B_STAGE + warp_n * FRAGS_N * B_STEP_N;
#pragma unroll
    for (int i = 0; i < FRAGS_M; ++i) {
      load_fragment(a[k % 2][i], a_tile + i * A_STEP_M + k * A_STEP_K, LDS_A);
    }
#pragma unroll
    for (int j = 0; j < FRAGS_N; ++j) {
      load_fragment(b[k % 2][j], b_tile + j * B_STEP_N + k * B_STEP_K, LDS_B);
    }
  };

  // 4. Prologue: the first STAGES - 1 slices are on their way. A group is closed for every stage, an empty one where K
  //    has no such slice, so that counting groups is counting slices.
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (stage < slices) {
#pragma unroll
      for (int part = 0; part < K_STEPS - 1; ++part) {
        copy_part(stage, part);
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
  for (int slice = 0; slice < slices; ++slice) {
    const bool more = slice + STAGES - 1 < slices;
    const int after = read_stage + 1 == STAGES ? 0 : read_stage + 1;
    const int next_stage = slice + 1 < slices ? after : read_stage;
#pragma unroll
    for (int k = 0; k < K_STEPS; ++k) {
      if (k + 1 < K_STEPS) {
        load_step(read_stage, k + 1);
        if (more) {
          copy_part(fill_stage, k);
        }
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
          wmma::mma_sync(acc[i][j], a[k % 2][i], b[k % 2][j], acc[i][j]);
        }
      }
    }
    read_stage = next_stage;
    fill_stage = fill_stage + 1 == STAGES ? 0 : fill_stage + 1;
  }

  // 5. Epilogue: each warp's tiles of D pass through shared memory, one row of tiles at a time. Which lane holds which
  //    element of a fragment is not specified; read back from there, rows can be converted and stored in vectors.
  //    C is not D, in which another element lies in the place of one of C.
  const __nv_bfloat16* c_tile = C + static_cast<long long>(warp_col) * ldc + warp_row;

  //    Every store of a lane has the same columns, so what belongs to them is loaded once.
  const int own_col = warp_col + thread % 32 % D_ROW_VECTORS * ALIGN_D;
  const Added bias_of_columns = *reinterpret_cast<const Added*>(bias_col + own_col);
  __syncthreads();  // every warp has read the last slice, which lay where the strips lie now
  float* strip = reinterpret_cast<float*>(shared) + warp * D_STRIP;
  const int lane = thread % 32;
#pragma unroll
  for (int i = 0; i < FRAGS_M; ++i) {
#pragma unroll
    for (int j = 0; j < FRAGS_N; ++j) {
      wmma::store_matrix_sync(strip + j * D_TILE, acc[i][j], LDS_D, wmma::mem_row_major);
    }
    __syncwarp();  // a lane reads what others have stored
#pragma unroll
    for (int s = 0; s < D_STORES; ++s) {
      const int strip_row = (lane + s * 32) / D_ROW_VECTORS;
      const int col = (lane + s * 32) % D_ROW_VECTORS * ALIGN_D;
      const int row = i * INST_M + strip_row;
      const Sums sums =
          *reinterpret_cast<const Sums*>(strip + col / INST_N * D_TILE + strip_row * LDS_D + col % INST_N);
      Outputs out;
      Added c = {};
      if (beta != 0) {  // else C is not read: what it holds, a NaN perhaps, does not count
#pragma unroll
        for (int e = 0; e < ALIGN_D; ++e) {
          c.of[e] = c_tile[static_cast<long long>(col + e) * ldc + row];
        }
      }
#pragma unroll
      for (int e = 0; e < ALIGN_D; ++e) {
        float value = sums.of[e];
        value = beta == 0.0f ? alpha * value : alpha * value + beta * __bfloat162float(c.of[e]);  // linear
        value = value + __bfloat162float(bias_of_columns.of[e]);                                  // biascol
        value = value * normal_cdf(value);                                                        // gelu
        out.of[e] = __float2bfloat16(value);
      }
      *reinterpret_cast<Outputs*>(d_tile + static_cast<long long>(row) * ldd + col) = out;
    }
    __syncwarp();  // the strip is read before the next row of tiles overwrites it
  }
}

#ifndef __CUDACC_RTC__

#ifndef WMMAGEN_STATUS
// What a launcher answers. Every launcher made by wmmagen has this type; where two meet, it is declared once. A later
// version may add values at the end, so this number tells how many are known.
#define WMMAGEN_STATUS 8
typedef enum wmmagen_status {
  WMMAGEN_OK = 0,                     // launched, or nothing to do
  WMMAGEN_BAD_SIZE = 1,               // a size is negative, no multiple of the block tile, or makes too many blocks
  WMMAGEN_BAD_LEADING_DIMENSION = 2,  // a leading dimension is less than a row, or not aligned as promised
  WMMAGEN_BAD_POINTER = 3,            // a pointer is null, misaligned, or that of a C where D must not be
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
  error = cudaFuncGetAttributes(&attributes, wmma_gemm_bf16_f32_bf16_rccr_linearbiascolgelu_exact8__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1_kernel);
  if (error != cudaSuccess) return told(error);
  error = cudaFuncSetAttribute(wmma_gemm_bf16_f32_bf16_rccr_linearbiascolgelu_exact8__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
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
extern "C" const char* wmma_gemm_bf16_f32_bf16_rccr_linearbiascolgelu_exact8__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1_status_text(wmmagen_status status) {
  switch (status) {
    case WMMAGEN_OK:
      return "launched, or nothing to do";
    case WMMAGEN_BAD_SIZE:
      return "a size is negative, no multiple of the block tile, or makes too many blocks";
    case WMMAGEN_BAD_LEADING_DIMENSION:
      return "a leading dimension is less than a row, or not aligned as promised";
    case WMMAGEN_BAD_POINTER:
      return "a pointer is null, misaligned, or that of a C where D must not be";
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
extern "C" wmmagen_status wmma_gemm_bf16_f32_bf16_rccr_linearbiascolgelu_exact8__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1_supports(
    const void* A, const void* B, const void* C, const void* bias_col, void* D, int M, int N, int K, int lda, int ldb, int ldc, int ldd, float alpha, float beta) {
  // N800: sizes are not negative
  if (M < 0 || N < 0 || K < 0) return WMMAGEN_BAD_SIZE;
  // N801: M is a multiple of BLOCK_M
  if (M % BLOCK_M != 0) return WMMAGEN_BAD_SIZE;
  // N802: N is a multiple of BLOCK_N
  if (N % BLOCK_N != 0) return WMMAGEN_BAD_SIZE;
  // N803: K is a multiple of BLOCK_K
  if (K % BLOCK_K != 0) return WMMAGEN_BAD_SIZE;
  // N804: the blocks fit into one grid
  if (M / BLOCK_M > 2147483647 / (N >= BLOCK_N ? N / BLOCK_N : 1)) return WMMAGEN_BAD_SIZE;
  // L221: lda is a multiple of ALIGN_A elements
  if (lda % ALIGN_A != 0) return WMMAGEN_BAD_LEADING_DIMENSION;
  // L222: ldb is a multiple of ALIGN_B elements
  if (ldb % ALIGN_B != 0) return WMMAGEN_BAD_LEADING_DIMENSION;
  // L223: ldd is a multiple of ALIGN_D elements
  if (ldd % ALIGN_D != 0) return WMMAGEN_BAD_LEADING_DIMENSION;
  // L224: ldc is a multiple of ALIGN_D elements
  if (beta != 0 && ldc % ALIGN_D != 0) return WMMAGEN_BAD_LEADING_DIMENSION;
  // L241: lda is at least the extent of a row of A
  if (lda < K) return WMMAGEN_BAD_LEADING_DIMENSION;
  // L242: ldb is at least the extent of a row of B
  if (ldb < K) return WMMAGEN_BAD_LEADING_DIMENSION;
  // L243: ldd is at least the N columns of D
  if (ldd < N) return WMMAGEN_BAD_LEADING_DIMENSION;
  // L248: ldc is at least the M rows of C
  if (beta != 0 && ldc < M) return WMMAGEN_BAD_LEADING_DIMENSION;

  // Without M or N, D has no element.
  if (M == 0 || N == 0) return WMMAGEN_OK;

  const std::size_t A_address = reinterpret_cast<std::size_t>(A);
  const std::size_t B_address = reinterpret_cast<std::size_t>(B);
  const std::size_t C_address = reinterpret_cast<std::size_t>(C);
  const std::size_t bias_col_address = reinterpret_cast<std::size_t>(bias_col);
  const std::size_t D_address = reinterpret_cast<std::size_t>(D);
  // P321: A is aligned to ALIGN_A elements
  if (A_address % (ALIGN_A * A_BITS / 8) != 0) return WMMAGEN_BAD_POINTER;
  // P322: B is aligned to ALIGN_B elements
  if (B_address % (ALIGN_B * A_BITS / 8) != 0) return WMMAGEN_BAD_POINTER;
  // P331: D is aligned to ALIGN_D elements
  if (D_address % (ALIGN_D * D_BITS / 8) != 0) return WMMAGEN_BAD_POINTER;
  // P333: C is aligned to ALIGN_D elements
  if (beta != 0 && C_address % (ALIGN_D * D_BITS / 8) != 0) return WMMAGEN_BAD_POINTER;
  // P376: bias_col is aligned to the vectors that it is read in
  if (bias_col_address % (ADDED_BYTES < 16 ? ADDED_BYTES : 16) != 0) return WMMAGEN_BAD_POINTER;
  // P326: a matrix that is read or written is not null
  if (D_address == 0 || (K != 0 && alpha != 0 && (A_address == 0 || B_address == 0)) || (beta != 0 && C_address == 0)) return WMMAGEN_BAD_POINTER;
  // P327: a C that is D has D's leading dimension
  if (beta != 0 && C_address == D_address && ldc != ldd) return WMMAGEN_BAD_POINTER;
  // P393: bias_col, which is read, is not null
  if (bias_col_address == 0) return WMMAGEN_BAD_POINTER;
  // P385: where C is D, it has D's layout
  if (beta != 0 && C_address == D_address) return WMMAGEN_BAD_POINTER;

  return prepare();
}

// Starts D = A * B and its epilogue on `stream`. Pointers are device pointers; sizes and leading dimensions are in elements. Where the
// contract is broken it says so and launches nothing; it prints nothing and ends nothing.
extern "C" wmmagen_status wmma_gemm_bf16_f32_bf16_rccr_linearbiascolgelu_exact8__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1(
    const void* A, const void* B, const void* C, const void* bias_col, void* D, int M, int N, int K, int lda, int ldb, int ldc, int ldd, float alpha, float beta, cudaStream_t stream) {
  const wmmagen_status status = wmma_gemm_bf16_f32_bf16_rccr_linearbiascolgelu_exact8__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1_supports(A, B, C, bias_col, D, M, N, K, lda, ldb, ldc, ldd, alpha, beta);
  if (status != WMMAGEN_OK || M == 0 || N == 0) return status;

  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(static_cast<unsigned>(M / BLOCK_M * (N / BLOCK_N)));
  launch.blockDim = dim3(THREADS);
  launch.dynamicSmemBytes = SHARED_BYTES;
  launch.stream = stream;
  const auto start = [&] {
    return cudaLaunchKernelEx(&launch, wmma_gemm_bf16_f32_bf16_rccr_linearbiascolgelu_exact8__i16x16x16_w2x2_f2x2_k2_shared_cpasync3_p8x8x4_rows_fb2_resfrag_staged_mb1_linear_sk1_kernel,
                              static_cast<const __nv_bfloat16*>(A), static_cast<const __nv_bfloat16*>(B),
                              static_cast<const __nv_bfloat16*>(C), static_cast<const __nv_bfloat16*>(bias_col), static_cast<__nv_bfloat16*>(D),
                              N, K, lda, ldb, ldc, ldd, alpha, beta);
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
