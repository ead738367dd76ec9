// A CUDA runtime without a device, for tests of what is emitted: the launcher
// as nvcc built it runs against it, and the kernel is computed here, in floats.
// It is built for one kernel, of which facts.h tells, and does what the
// variable FAKE says: empty for a device that is right.

#include "cudart.h"

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "facts.h"

FakeCuda fake;

namespace {

constexpr std::size_t EVERY_BLOCK = 48 * 1024;

std::mutex guard;
std::map<std::pair<int, const void*>, std::size_t>
    asked;  // shared memory by device and kernel
thread_local int current = 0;
thread_local cudaError_t last = cudaSuccess;

bool does(const char* what) {
  const char* said = std::getenv("FAKE");
  return said != nullptr && std::strcmp(said, what) == 0;
}

cudaError_t answer(cudaError_t error) {
  if (error != cudaSuccess) last = error;
  return error;
}

template <class T>
T argument(void** arguments, int number) {
  T value;
  std::memcpy(&value, arguments[number], sizeof(T));
  return value;
}

inline float number(float value) { return value; }
inline float number(__half value) { return __half2float(value); }
inline void round_to(float* to, float value) { *to = value; }
inline void round_to(__half* to, float value) { *to = __float2half(value); }

struct Call {
  const __half *A, *B;
  const OUTPUT* C;
  OUTPUT* D;
  char* workspace;
  int M, N, K, lda, ldb, ldc, ldd;
  float alpha, beta;
  const OUTPUT* vectors[4];  // of biases, which have D's type here
  float scalars[3];
};

// The matrix of a product: of an array of pointers, or the one that there is.
template <class T>
T matrix(void** a, int number, int product) {
  if (!POINTERS) return argument<T>(a, number);
  T const* table = argument<T const*>(a, number);
  return table == nullptr ? nullptr : table[product];
}

Call read(const cudaLaunchConfig_t& launch, void** a, int product) {
  int next = 0;
  Call c = {};
  const int of_b = does("first_b") ? 0 : product;
  c.A = matrix<const __half*>(a, next++, product);
  c.B = matrix<const __half*>(a, next++, of_b);
  if (SCALED) c.C = matrix<const OUTPUT*>(a, next++, product);
  for (int i = 0; i < VECTORS; ++i)
    c.vectors[i] = argument<const OUTPUT*>(a, next++);
  c.D = matrix<OUTPUT*>(a, next++, product);
  if (WORKSPACE) c.workspace = argument<char*>(a, next++);
  if (PREDICATED) c.M = argument<int>(a, next++);
  for (int* field : {&c.N, &c.K, &c.lda, &c.ldb})
    *field = argument<int>(a, next++);
  if (SCALED) c.ldc = argument<int>(a, next++);
  c.ldd = argument<int>(a, next++);
  c.alpha = SCALED ? argument<float>(a, next++) : 1.0f;
  c.beta = SCALED ? argument<float>(a, next++) : 0.0f;
  for (int i = 0; i < SCALARS; ++i)
    c.scalars[i] = argument<float>(a, next++);
  if (STRIDED) {
    c.A += product * argument<long long>(a, next++);
    c.B += of_b * argument<long long>(a, next++);
    if (SCALED) c.C += product * argument<long long>(a, next++);
    c.D += product * argument<long long>(a, next++);
  }
  // Where sizes are multiples, the grid tells M; else it has to be what M and N ask for.
  const int blocks = static_cast<int>(launch.gridDim.x);
  if (!PREDICATED) c.M = blocks / (c.N / BLOCK_N) * BLOCK_M;
  const int down = (c.M + BLOCK_M - 1) / BLOCK_M;
  if (blocks != down * ((c.N + BLOCK_N - 1) / BLOCK_N)) std::abort();
  return c;
}

// The steps behind linear, of a kernel that has any.
std::size_t placed(bool row_major, int row, int col, int ld) {
  return row_major ? static_cast<std::size_t>(row) * ld + col
                   : static_cast<std::size_t>(col) * ld + row;
}

float further_steps(const Call& call, float value, int row, int col) {
  static_cast<void>(call), static_cast<void>(row), static_cast<void>(col);
  STEPS
  return value;
}

void compute(const Call& c) {
  const int k_end = does("last_slice_dropped") && c.K > 0 ? c.K - 16 : c.K;
  std::vector<float> a(static_cast<std::size_t>(c.M) * c.K),
      b(static_cast<std::size_t>(c.K) * c.N);
  if (c.alpha != 0 || does("alpha_zero_reads")) {
    for (int i = 0; i < c.M; ++i)
      for (int k = 0; k < c.K; ++k)
        a[static_cast<std::size_t>(i) * c.K + k] =
            number(c.A[A_ROW_MAJOR ? static_cast<std::size_t>(i) * c.lda + k
                                   : static_cast<std::size_t>(k) * c.lda + i]);
    for (int k = 0; k < c.K; ++k)
      for (int j = 0; j < c.N; ++j)
        b[static_cast<std::size_t>(k) * c.N + j] =
            number(c.B[B_ROW_MAJOR ? static_cast<std::size_t>(k) * c.ldb + j
                                   : static_cast<std::size_t>(j) * c.ldb + k]);
  }
  std::vector<float> sums(static_cast<std::size_t>(c.N));
  for (int i = 0; i < c.M; ++i) {
    sums.assign(sums.size(), 0.0f);
    for (int k = 0; k < k_end; ++k) {
      const float left = a[static_cast<std::size_t>(i) * c.K + k];
      if (left == 0) continue;
      for (int j = 0; j < c.N; ++j)
        sums[j] += left * b[static_cast<std::size_t>(k) * c.N + j];
    }
    for (int j = 0; j < c.N; ++j) {
      float d = c.alpha * sums[j];
      if (c.beta != 0 || (SCALED && does("beta_zero_reads")))
        d += c.beta * number(c.C[placed(C_ROW_MAJOR, i, j, c.ldc)]);
      d = further_steps(c, d, i, does("wrong_column") ? (j + 1) % c.N : j);
      if (does("zeros")) d = 0;
      if (does("one_element") && i == c.M - 1 && j == 3) d += 1;
      if (does("one_unwritten") && i == 5 && j == c.N - 1) continue;
      round_to(&c.D[placed(D_ROW_MAJOR, i, j, c.ldd)], d);
    }
  }
  if (does("beside_d")) round_to(&c.D[D_ROW_MAJOR ? c.N : c.M], 0);
  if (does("behind_d"))
    round_to(&c.D[static_cast<std::size_t>(D_ROW_MAJOR ? c.M : c.N) * c.ldd + 40], 0);
  if (WORKSPACE && does("before_workspace")) c.workspace[-1] = 0;
  if (does("writes_a")) round_to(const_cast<__half*>(c.A), 9);
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int,
                            uint3*, uint3*, dim3*, dim3*, int*) {}
char __cudaInitModule(void**) { return 1; }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t,
                               cudaStream_t) {
  std::abort();
}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) {
  std::abort();
}

cudaError_t cudaGetDevice(int* device) {
  if (does("no_device")) return answer(cudaErrorNoDevice);
  if (does("old_driver")) return answer(cudaErrorInsufficientDriver);
  *device = current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  current = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceReset() {
  const std::lock_guard<std::mutex> held(guard);
  asked.clear();
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = last;
  last = cudaSuccess;
  return error;
}
const char* cudaGetErrorString(cudaError_t error) {
  static thread_local std::string text;
  text = "error " + std::to_string(error);
  return text.c_str();
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return answer(does("no_code") ? cudaErrorNoKernelImageForDevice
                                : cudaSuccess);
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute,
                                 int value) {
  ++fake.attributes;
  if (does("small_device") && static_cast<std::size_t>(value) > EVERY_BLOCK)
    return answer(cudaErrorInvalidValue);
  const std::lock_guard<std::mutex> held(guard);
  asked[{current, kernel}] = static_cast<std::size_t>(value);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* launch,
                                const void* kernel, void** arguments) {
  {
    const std::lock_guard<std::mutex> held(guard);
    const auto found = asked.find({current, kernel});
    if (launch->dynamicSmemBytes >
        (found == asked.end() ? EVERY_BLOCK : found->second))
      return answer(cudaErrorInvalidValue);
  }
  if (does("launch_fails")) return answer(cudaErrorLaunchOutOfResources);
  ++fake.launches;
  if (launch->stream != static_cast<cudaStream_t>(fake.stream))
    ++fake.strangers;
  // A caller that only counts launches gives an address of nothing.
  if (argument<std::size_t>(arguments, 0) > 65536 && !does("nothing"))
    for (unsigned product = 0; product < launch->gridDim.y; ++product) {
      if (does("last_product_dropped") && product > 0 &&
          product + 1 == launch->gridDim.y)
        continue;
      compute(read(*launch, arguments, static_cast<int>(product)));
    }
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t size) {
  return posix_memalign(memory, 256, size) == 0 ? cudaSuccess
                                                : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size,
                            cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, size);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size,
                       cudaMemcpyKind) {
  std::memcpy(to, from, size);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = static_cast<cudaStream_t>(fake.stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }

}  // extern "C"
