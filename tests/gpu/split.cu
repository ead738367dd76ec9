// Launches of an emitted launcher, my_gemm, that splits K, in one CUDA graph: each into a D of its own, on random data
// (normally distributed, or integers), and as often as facts.h says. Prints how many of all D differ from the first one.

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "my_gemm.h"

#include "facts.h"  // last: it defines M, N and K, which are parameters of what a header declares

namespace {

void demand(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

void* filled(std::size_t count, bool integers, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> whole(-2, 2);
  std::vector<__half> values(count);
  for (__half& value : values) value = __float2half(integers ? static_cast<float>(whole(random)) : normal(random));
  void* memory = nullptr;
  demand(cudaMalloc(&memory, count * sizeof(__half)), "cudaMalloc");
  demand(cudaMemcpy(memory, values.data(), count * sizeof(__half), cudaMemcpyHostToDevice), "cudaMemcpy");
  return memory;
}

}  // namespace

int main() {
  const std::size_t elements = static_cast<std::size_t>(M) * N;
  const std::size_t bytes = elements * sizeof(OUTPUT);
  const void* A = filled(static_cast<std::size_t>(M) * K, INTEGERS, 1);
  const void* B = filled(static_cast<std::size_t>(K) * N, INTEGERS, 2);
  char* D = nullptr;
  demand(cudaMalloc(&D, LAUNCHES * bytes), "cudaMalloc");
#if WORKSPACE
  void* workspace = nullptr;
  const size_t workspace_bytes = my_gemm_workspace_bytes(M, N);
  demand(cudaMalloc(&workspace, workspace_bytes), "cudaMalloc");
  demand(cudaMemset(workspace, 0, workspace_bytes), "cudaMemset");
#define REST , workspace, workspace_bytes
#else
#define REST
#endif

  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  demand(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  demand(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int i = 0; i < LAUNCHES; ++i) {
    const wmmagen_status status = my_gemm(A, B, D + i * bytes, M, N, K, K, N, N REST, stream);
    if (status != WMMAGEN_OK) {
      std::printf("the launcher: %s\n", my_gemm_status_text(status));
      return 1;
    }
  }
  demand(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  demand(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");

  std::vector<unsigned char> all(LAUNCHES * bytes), first;
  int different = 0;
  for (int turn = 0; turn < TURNS; ++turn) {
    demand(cudaMemset(D, 0xff, LAUNCHES * bytes), "cudaMemset");
    demand(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    demand(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
    demand(cudaStreamSynchronize(stream), "the launches");
    demand(cudaMemcpy(all.data(), D, all.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    if (turn == 0) first.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(bytes));
    for (int i = 0; i < LAUNCHES; ++i) different += std::memcmp(&all[i * bytes], first.data(), bytes) != 0;
  }
  std::printf("%d of %d\n", different, LAUNCHES * TURNS);
  return 0;
}
