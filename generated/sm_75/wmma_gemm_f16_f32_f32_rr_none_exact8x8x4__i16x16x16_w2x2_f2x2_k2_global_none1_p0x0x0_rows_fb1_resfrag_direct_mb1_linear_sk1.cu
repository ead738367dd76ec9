// wmma_gemm_f16_f32_f32_rr_none_exact8x8x4__i16x16x16_w2x2_f2x2_k2_global_none1_p0x0x0_rows_fb1_resfrag_direct_mb1_linear_sk1
//
// D = A * B on tensor cores. A (M x K) and B (K x N) are f16, row-major;
// D (M x N) is f32, row-major. Sums are f32.
//
//   sizes     M, N, K: multiples of 64, 64, 32; lda, ldb, ldd: of 8, 8, 4
//   block     64 x 64 of D, 32 of K at a time
//   threads   128: 2 x 2 warps, each 32 x 32 of D
//   shared    0 bytes
//   sums      32 registers of each thread
//
// Compile it by `nvcc -arch=sm_75 -c`, or for a later architecture. Made by
// `wmmagen render wmma_gemm_f16_f32_f32_rr_none_exact8x8x4__i16x16x16_w2x2_f2x2_k2_global_none1_p0x0x0_rows_fb1_resfrag_direct_mb1_linear_sk1 --arch sm_75`.
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
constexpr int D_BITS = 32;     // bits of an element of D
constexpr int ALIGN_A = 8;     // A's pointer and lda are multiples of so many elements
constexpr int ALIGN_B = 8;     // the same of B and ldb
constexpr int ALIGN_D = 4;     // the same of D and ldd
constexpr int INST_M = 16;     // one matrix instruction: rows of D
constexpr int INST_N = 16;     // columns of D
constexpr int INST_K = 16;     // products that it sums
constexpr int WARPS_M = 2;     // warps of a block, down
constexpr int WARPS_N = 2;     // and across
constexpr int FRAGS_M = 2;     // accumulator fragments of a warp, down
constexpr int FRAGS_N = 2;     // and across
constexpr int K_STEPS = 2;     // instructions along K in one slice
constexpr int MIN_BLOCKS = 1;  // blocks that a multiprocessor is to hold at a time, which limits registers

constexpr int WARP_M = FRAGS_M * INST_M;         // the tile of D of one warp: rows
constexpr int WARP_N = FRAGS_N * INST_N;         // and columns
constexpr int BLOCK_M = WARPS_M * WARP_M;        // the tile of D of one block: rows
constexpr int BLOCK_N = WARPS_N * WARP_N;        // and columns
constexpr int BLOCK_K = K_STEPS * INST_K;        // one slice of K
constexpr int THREADS = WARPS_M * WARPS_N * 32;  // threads of a block
constexpr int A_TILE_COLS = INST_K;              // elements in a row of an instruction tile of A
constexpr int B_TILE_COLS = INST_N;              // elements in a row of an instruction tile of B
constexpr int D_TILE_COLS = INST_N;              // elements in a row of an instruction tile of D

// What the numbers must obey, whoever changes them. The ids are those of `wmmagen rules`.
static_assert((INST_M == 16 && INST_N == 16 && INST_K == 16) ||
                  (INST_M == 32 && INST_N == 8 && INST_K == 16) ||
                  (INST_M == 8 && INST_N == 32 && INST_K == 16),
              "T101 instruction-shape: the instruction has a shape that the hardware has");
static_assert(A_TILE_COLS * A_BITS % 256 == 0,
              "P303 global-tiles-a: every instruction tile of A in global memory starts on 256 bits");
static_assert(B_TILE_COLS * A_BITS % 256 == 0,
              "P304 global-tiles-b: every instruction tile of B in global memory starts on 256 bits");
static_assert(D_TILE_COLS * D_BITS % 256 == 0,
              "P305 global-tiles-d: every instruction tile of D in global memory starts on 256 bits");
static_assert(THREADS <= 1024, "R401 threads-per-block: a block has 1024 threads at most");
static_assert(ALIGN_A * A_BITS == 128, "X609 fed-alignment-a: align_a is exactly 16 bytes");
static_assert(ALIGN_B * A_BITS == 128, "X610 fed-alignment-b: align_b is exactly 16 bytes");
static_assert(ALIGN_D * D_BITS == 128, "X611 stored-alignment-d: align_d is exactly 16 bytes");
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr int MULTIPROCESSOR_THREADS = 1024;  // threads that a multiprocessor holds at a time
constexpr int MULTIPROCESSOR_BLOCKS = 16;     // and blocks
static_assert(MIN_BLOCKS * THREADS <= MULTIPROCESSOR_THREADS,
              "R403 resident-threads: a multiprocessor can hold the blocks that the launch bounds name");
static_assert(MIN_BLOCKS <= MULTIPROCESSOR_BLOCKS,
              "R404 resident-blocks: a multiprocessor can hold the blocks that the launch bounds name");
#endif

using FragmentA = wmma::fragment<wmma::matrix_a, INST_M, INST_N, INST_K, __half, wmma::row_major>;
using FragmentB = wmma::fragment<wmma::matrix_b, INST_M, INST_N, INST_K, __half, wmma::row_major>;
using Accumulator = wmma::fragment<wmma::accumulator, INST_M, INST_N, INST_K, float>;

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) wmma_gemm_f16_f32_f32_rr_none_exact8x8x4__i16x16x16_w2x2_f2x2_k2_global_none1_p0x0x0_rows_fb1_resfrag_direct_mb1_linear_sk1_kernel(
    const __half* __restrict__ A, const __half* __restrict__ B, float* __restrict__ D,
    int N, int K, int lda, int ldb, int ldd) {
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
  float* d_tile = D + static_cast<long long>(warp_row) * ldd + warp_col;  // offsets can pass 2^31
  const int slices = K / BLOCK_K;

  // 2. Accumulators: the warp's tile of D stays in registers from the first slice of K to the last.
  Accumulator acc[FRAGS_M][FRAGS_N];
#pragma unroll
  for (int i = 0; i < FRAGS_M; ++i) {
#pragma unroll
    for (int j = 0; j < FRAGS_N; ++j) {
      wmma::fill_fragment(acc[i][j], 0.0f);
    }
  }

  // 3. Operands: where this warp's first instruction tiles lie; both walk along K.
  const __half* a_tile = A + static_cast<long long>(warp_row) * lda;
  const __half* b_tile = B + warp_col;
  const long long b_slice = static_cast<long long>(BLOCK_K) * ldb;

  // 4. Main loop: no shared memory and no barrier. A slice is K_STEPS instructions deep, so that loads can run ahead.
  for (int slice = 0; slice < slices; ++slice) {
#pragma unroll
    for (int k = 0; k < K_STEPS; ++k) {
      FragmentA a[FRAGS_M];
      FragmentB b[FRAGS_N];
#pragma unroll
      for (int i = 0; i < FRAGS_M; ++i) {
        wmma::load_matrix_sync(a[i], a_tile + static_cast<long long>(i * INST_M) * lda + k * INST_K, lda);
      }
#pragma unroll
      for (int j = 0; j < FRAGS_N; ++j) {
        wmma::load_matrix_sync(b[j], b_tile + static_cast<long long>(k * INST_K) * ldb + j * INST_N, ldb);
      }
#pragma unroll
      for (int i = 0; i < FRAGS_M; ++i) {
#pragma unroll
        for (int j = 0; j < FRAGS_N; ++j) {
          wmma::mma_sync(acc[i][j], a[i], b[j], acc[i][j]);
        }
      }
    }
    a_tile += BLOCK_K;
    b_tile += b_slice;
  }

  // 5. Epilogue: every warp stores its own tile.
#pragma unroll
  for (int i = 0; i < FRAGS_M; ++i) {
#pragma unroll
    for (int j = 0; j < FRAGS_N; ++j) {
      wmma::store_matrix_sync(d_tile + static_cast<long long>(i * INST_M) * ldd + j * INST_N, acc[i][j], ldd,
                              wmma::mem_row_major);
    }
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

// Asks the current device, once, whether it runs this kernel. Threads may ask at the same time, and a stream may be
// capturing: nothing here is work for a stream.
wmmagen_status prepare() {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return told(error);
  const unsigned long long flag = device < FLAGS ? 1ull << device : 0;  // those beyond are asked every time
  if (prepared.load(std::memory_order_acquire) & flag) return WMMAGEN_OK;

  cudaFuncAttributes attributes;
  error = cudaFuncGetAttributes(&attributes, wmma_gemm_f16_f32_f32_rr_none_exact8x8x4__i16x16x16_w2x2_f2x2_k2_global_none1_p0x0x0_rows_fb1_resfrag_direct_mb1_linear_sk1_kernel);
  if (error != cudaSuccess) return told(error);
  prepared.fetch_or(flag, std::memory_order_release);
  return WMMAGEN_OK;
}

}  // namespace

// What a status means, in words.
extern "C" const char* wmma_gemm_f16_f32_f32_rr_none_exact8x8x4__i16x16x16_w2x2_f2x2_k2_global_none1_p0x0x0_rows_fb1_resfrag_direct_mb1_linear_sk1_status_text(wmmagen_status status) {
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
extern "C" wmmagen_status wmma_gemm_f16_f32_f32_rr_none_exact8x8x4__i16x16x16_w2x2_f2x2_k2_global_none1_p0x0x0_rows_fb1_resfrag_direct_mb1_linear_sk1_supports(
    const void* A, const void* B, void* D, int M, int N, int K, int lda, int ldb, int ldd) {
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
  // L241: lda is at least the extent of a row of A
  if (lda < K) return WMMAGEN_BAD_LEADING_DIMENSION;
  // L242: ldb is at least the extent of a row of B
  if (ldb < N) return WMMAGEN_BAD_LEADING_DIMENSION;
  // L243: ldd is at least the N columns of D
  if (ldd < N) return WMMAGEN_BAD_LEADING_DIMENSION;

  // Without M or N, D has no element.
  if (M == 0 || N == 0) return WMMAGEN_OK;

  const std::size_t A_address = reinterpret_cast<std::size_t>(A);
  const std::size_t B_address = reinterpret_cast<std::size_t>(B);
  const std::size_t D_address = reinterpret_cast<std::size_t>(D);
  // P323: A is aligned to 32 bytes
  if (A_address % 32 != 0) return WMMAGEN_BAD_POINTER;
  // P324: B is aligned to 32 bytes
  if (B_address % 32 != 0) return WMMAGEN_BAD_POINTER;
  // P325: D is aligned to 32 bytes
  if (D_address % 32 != 0) return WMMAGEN_BAD_POINTER;
  // P326: a matrix that is read or written is not null
  if (D_address == 0 || (K != 0 && (A_address == 0 || B_address == 0))) return WMMAGEN_BAD_POINTER;

  return prepare();
}

// Starts D = A * B on `stream`. Pointers are device pointers; sizes and leading dimensions are in elements. Where the
// contract is broken it says so and launches nothing; it prints nothing and ends nothing.
extern "C" wmmagen_status wmma_gemm_f16_f32_f32_rr_none_exact8x8x4__i16x16x16_w2x2_f2x2_k2_global_none1_p0x0x0_rows_fb1_resfrag_direct_mb1_linear_sk1(
    const void* A, const void* B, void* D, int M, int N, int K, int lda, int ldb, int ldd, cudaStream_t stream) {
  const wmmagen_status status = wmma_gemm_f16_f32_f32_rr_none_exact8x8x4__i16x16x16_w2x2_f2x2_k2_global_none1_p0x0x0_rows_fb1_resfrag_direct_mb1_linear_sk1_supports(A, B, D, M, N, K, lda, ldb, ldd);
  if (status != WMMAGEN_OK || M == 0 || N == 0) return status;

  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(static_cast<unsigned>(M / BLOCK_M * (N / BLOCK_N)));
  launch.blockDim = dim3(THREADS);
  launch.stream = stream;
  const auto start = [&] {
    return cudaLaunchKernelEx(&launch, wmma_gemm_f16_f32_f32_rr_none_exact8x8x4__i16x16x16_w2x2_f2x2_k2_global_none1_p0x0x0_rows_fb1_resfrag_direct_mb1_linear_sk1_kernel,
                              static_cast<const __half*>(A), static_cast<const __half*>(B),
                              static_cast<float*>(D), N, K, lda, ldb, ldd);
  };
  cudaError_t error = start();
  return error == cudaSuccess ? WMMAGEN_OK : told(error);
}

#endif  // __CUDACC_RTC__
