// Calls of my_gemm_padded, as nvcc built it, against a CUDA runtime and a
// my_gemm that are played here: D = alpha A B + beta C of doubles, A by
// columns. Prints what is wrong, and nothing else. facts.h has the block tile.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "facts.h"
#include "my_gemm_padded.h"

namespace {

int wrong = 0, pads = 0, calls = 0;
bool refuses = false;

// Kernels are registered before this file's objects are made.
std::map<const void*, std::string>& kernels() {
  static std::map<const void*, std::string> names;
  return names;
}

void equal(long long is, long long should, const char* what) {
  if (is == should) return;
  std::printf("%s: %lld, not %lld\n", what, is, should);
  wrong = 1;
}

template <class T>
T argument(void** arguments, int number) {
  T value;
  std::memcpy(&value, arguments[number], sizeof(T));
  return value;
}

wmmagen_status answer(int M, int N, int K, int lda, int ldb, int ldc, int ldd) {
  const bool whole = M % BLOCK_M == 0 && N % BLOCK_N == 0 && K % BLOCK_K == 0;
  if (!whole) return WMMAGEN_BAD_SIZE;
  return lda == M && ldb == N && ldc == N && ldd == N
             ? WMMAGEN_OK
             : WMMAGEN_BAD_LEADING_DIMENSION;
}

// A matrix amid elements that nobody may use or touch.
struct Matrix {
  int lines, length, ld;
  std::vector<double> all;

  Matrix(int lines, int length, int gap)
      : lines(lines),
        length(length),
        ld(length + gap),
        all(static_cast<std::size_t>(lines + 2) * ld,
            std::numeric_limits<double>::quiet_NaN()) {}
  double* data() { return all.data() + ld; }
  double& at(int line, int i) {
    return all[static_cast<std::size_t>(line + 1) * ld + i];
  }
  bool kept() {
    for (int line = -1; line <= lines; ++line)
      for (int i = 0; i < ld; ++i)
        if ((line < 0 || line == lines || i >= length) &&
            !std::isnan(at(line, i)))
          return false;
    return true;
  }
};

void problem(int M, int N, int K, double beta) {
  Matrix A(K, M, 3), B(K, N, 5), C(M, N, 1), D(M, N, 7);
  for (int k = 0; k < K; ++k) {
    for (int m = 0; m < M; ++m) A.at(k, m) = (m + 3 * k) % 5 - 2;
    for (int n = 0; n < N; ++n) B.at(k, n) = (2 * n + k) % 5 - 2;
  }
  if (beta != 0)
    for (int m = 0; m < M; ++m)
      for (int n = 0; n < N; ++n) C.at(m, n) = (m + n) % 7;
  const std::size_t bytes = my_gemm_padded_workspace_bytes(M, N, K);
  void* workspace = nullptr;
  if (posix_memalign(&workspace, 256, bytes + 256) != 0) std::abort();
  std::memset(workspace, 0xFF, bytes + 256);  // NaN
  for (const bool again : {false, true}) {
    for (int m = 0; m < M; ++m)
      for (int n = 0; n < N; ++n) D.at(m, n) = 1000;
    const int before = pads;
    equal(my_gemm_padded(again ? nullptr : A.data(), again ? nullptr : B.data(),
                         C.data(), D.data(), M, N, K, A.ld, B.ld, C.ld, D.ld,
                         2.0, beta, workspace, bytes, nullptr),
          WMMAGEN_OK, "a call");
    equal(pads - before,
          again    ? 0
          : K == 0 ? 0
                   : 2,
          "operands that are padded");
    for (int m = 0; m < M; ++m)
      for (int n = 0; n < N; ++n) {
        double sum = 0;
        for (int k = 0; k < K; ++k) sum += A.at(k, m) * B.at(k, n);
        const double should = 2 * sum + (beta != 0 ? beta * C.at(m, n) : 0);
        if (D.at(m, n) != should)
          equal(static_cast<long long>(D.at(m, n)),
                static_cast<long long>(should), "D");
      }
    equal(D.kept(), 1, "what lies around D");
  }
  for (int i = 0; i < 256; ++i)
    equal(static_cast<unsigned char*>(workspace)[bytes + i], 0xFF,
          "behind the workspace");
  std::free(workspace);
}

struct Call {
  void *A = at(4096), *B = at(8192), *C = at(12288), *D = at(16384);
  int M = BLOCK_M + 1, N = BLOCK_N + 1, K = BLOCK_K + 1;
  int lda = M, ldb = N, ldc = N, ldd = N;
  void* workspace = at(20480);
  std::size_t bytes =
      my_gemm_padded_workspace_bytes(BLOCK_M + 1, BLOCK_N + 1, BLOCK_K + 1);

  static void* at(std::size_t address) {
    return reinterpret_cast<void*>(address);
  }
  wmmagen_status made() const {
    return my_gemm_padded(A, B, C, D, M, N, K, lda, ldb, ldc, ldd, 1.0, 1.0,
                          workspace, bytes, nullptr);
  }
};

void refused(wmmagen_status status, void (*spoil)(Call&), const char* what) {
  Call call;
  spoil(call);
  const int before = calls;
  equal(call.made(), status, what);
  equal(calls, before, "calls of the kernel");
}

}  // namespace

extern "C" {

wmmagen_status my_gemm_supports(const void*, const void*, const void*, void*,
                                int M, int N, int K, int lda, int ldb, int ldc,
                                int ldd, double, double) {
  return refuses ? WMMAGEN_NO_CODE : answer(M, N, K, lda, ldb, ldc, ldd);
}
wmmagen_status my_gemm(const void* A, const void* B, const void* C, void* D,
                       int M, int N, int K, int lda, int ldb, int ldc, int ldd,
                       double alpha, double beta, cudaStream_t) {
  ++calls;
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) {
      double sum = 0;
      for (int k = 0; k < K; ++k)
        sum += static_cast<const double*>(
                   A)[static_cast<std::size_t>(k) * lda + m] *
               static_cast<const double*>(
                   B)[static_cast<std::size_t>(k) * ldb + n];
      const std::size_t c = static_cast<std::size_t>(m) * ldc + n;
      const double added =
          beta != 0 ? beta * static_cast<const double*>(C)[c] : 0;
      static_cast<double*>(D)[static_cast<std::size_t>(m) * ldd + n] =
          alpha * sum + added;
    }
  return answer(M, N, K, lda, ldb, ldc, ldd);
}

void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* function, char*,
                            const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  kernels()[function] = name;
}
char __cudaInitModule(void**) { return 1; }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t,
                               cudaStream_t) {
  std::abort();
}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) {
  std::abort();
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* launch,
                                const void* kernel, void** a) {
  const std::string name = kernels()[kernel];
  const bool pad = name == "my_gemm_pad_kernel";
  if (!pad && name != "my_gemm_cut_kernel") std::abort();
  pads += pad;
  const double* from = argument<const double*>(a, 0);
  const int lines = argument<int>(a, 1), length = argument<int>(a, 2),
            ld_from = argument<int>(a, 3);
  double* to = argument<double*>(a, 4);
  const int length_to = argument<int>(a, 5),
            ld_to = pad ? length_to : argument<int>(a, 6);
  for (int line = 0; line < static_cast<int>(launch->gridDim.x); ++line)
    for (int i = 0; i < length_to; ++i)
      to[static_cast<std::size_t>(line) * ld_to + i] =
          line < lines && i < length
              ? from[static_cast<std::size_t>(line) * ld_from + i]
              : (0.0);
  return cudaSuccess;
}

}  // extern "C"

int main() {
  problem(1, 1, 1, 0.0);
  problem(BLOCK_M + 1, BLOCK_N - 1, BLOCK_K + 3, -1.0);
  problem(2 * BLOCK_M, BLOCK_N, 2 * BLOCK_K, 1.0);
  problem(5, BLOCK_N + 2, 0, 3.0);

  refused(WMMAGEN_BAD_SIZE, [](Call& c) { c.M = -1; }, "a negative M");
  refused(WMMAGEN_BAD_SIZE, [](Call& c) { c.K = -5; }, "a negative K");
  refused(
      WMMAGEN_BAD_SIZE,
      [](Call& c) { c.N = c.ldb = c.ldc = c.ldd = 2147483647; },
      "an N that cannot be padded");
  refused(
      WMMAGEN_BAD_LEADING_DIMENSION, [](Call& c) { --c.lda; },
      "an lda that is less than a line");
  refused(
      WMMAGEN_BAD_LEADING_DIMENSION, [](Call& c) { --c.ldb; },
      "an ldb that is less than a line");
  refused(
      WMMAGEN_BAD_LEADING_DIMENSION, [](Call& c) { --c.ldc; },
      "an ldc that is less than a line");
  refused(
      WMMAGEN_BAD_LEADING_DIMENSION, [](Call& c) { --c.ldd; },
      "an ldd that is less than a line");
  refused(WMMAGEN_BAD_POINTER, [](Call& c) { c.D = nullptr; }, "no D");
  refused(WMMAGEN_BAD_POINTER, [](Call& c) { c.C = nullptr; }, "no C");
  refused(
      WMMAGEN_BAD_POINTER, [](Call& c) { c.A = Call::at(4097); },
      "half an element of A");
  refused(
      WMMAGEN_BAD_WORKSPACE, [](Call& c) { c.workspace = nullptr; },
      "no workspace");
  refused(
      WMMAGEN_BAD_WORKSPACE,
      [](Call& c) { c.workspace = Call::at(20480 + 16); },
      "a misaligned workspace");
  refused(
      WMMAGEN_BAD_WORKSPACE, [](Call& c) { --c.bytes; }, "a small workspace");
  refused(WMMAGEN_OK, [](Call& c) { c.M = c.lda = 0; }, "no row");
  refuses = true;
  refused(
      WMMAGEN_NO_CODE, [](Call&) {},
      "a device that runs no code of this build");
  equal(my_gemm_padded_workspace_bytes(0, 5, 5), 0, "the workspace of no D");
  equal(std::strcmp(my_gemm_padded_status_text(WMMAGEN_BAD_WORKSPACE),
                    "the workspace is missing, misaligned or too small"),
        0, "a status in words");
  return wrong;
}
