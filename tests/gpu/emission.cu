// What tests/gpu/prove_emission.py measures of an emitted launcher, my_gemm, for row-major A and B and D = A * B.
//
//   host      nanoseconds of the host for one call, beside an empty kernel's launch and the checks alone
//   time      microseconds of the kernel for one launch at 2048 x 2048 x 2048, normal data, by replays of a graph
//   threads   launches of many threads at once, captured ones and others, each result compared with the exact one

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "facts.h"
#include "my_gemm.h"

namespace {

void demand(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

void demand(wmmagen_status status) {
  if (status == WMMAGEN_OK) return;
  std::printf("the launcher: %s\n", my_gemm_status_text(status));
  std::exit(1);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A, B and D on the device, packed.
struct Matrices {
  Matrices(int m, int n, int k, const std::vector<__half>& a, const std::vector<__half>& b) : m(m), n(n), k(k) {
    demand(cudaMalloc(&A, a.size() * sizeof(__half)), "cudaMalloc");
    demand(cudaMalloc(&B, b.size() * sizeof(__half)), "cudaMalloc");
    demand(cudaMalloc(&D, elements() * sizeof(OUTPUT)), "cudaMalloc");
    demand(cudaMemcpy(A, a.data(), a.size() * sizeof(__half), cudaMemcpyHostToDevice), "cudaMemcpy");
    demand(cudaMemcpy(B, b.data(), b.size() * sizeof(__half), cudaMemcpyHostToDevice), "cudaMemcpy");
    demand(cudaMemset(D, 0xff, elements() * sizeof(OUTPUT)), "cudaMemset");
  }
  std::size_t elements() const { return static_cast<std::size_t>(m) * n; }
  wmmagen_status supports() const { return my_gemm_supports(A, B, D, m, n, k, k, n, n); }
  wmmagen_status launch(cudaStream_t stream) const { return my_gemm(A, B, D, m, n, k, k, n, n, stream); }

  int m, n, k;
  void *A, *B, *D;
};

cudaStream_t new_stream() {
  cudaStream_t stream;
  demand(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return stream;
}

__global__ void empty() {}

// Nanoseconds of the host for one call, the median of batches so small that the device's queue never fills.
template <class Call>
double cost(cudaStream_t stream, Call call) {
  constexpr int CALLS = 200;
  std::vector<double> batches;
  for (int batch = 0; batch < 300; ++batch) {
    demand(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < CALLS; ++i) call();
    const auto end = std::chrono::steady_clock::now();
    batches.push_back(std::chrono::duration<double, std::nano>(end - begin).count() / CALLS);
  }
  demand(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return median(batches);
}

int host() {
  const int m = BLOCK_M, n = BLOCK_N, k = BLOCK_K;
  const Matrices one(m, n, k, std::vector<__half>(m * k), std::vector<__half>(k * n));
  const cudaStream_t stream = new_stream();
  wmmagen_status worst = one.launch(stream);
  const double launcher = cost(stream, [&] { worst = std::max(worst, one.launch(stream)); });
  const double bare = cost(stream, [&] { empty<<<1, 32, 0, stream>>>(); });
  const double checks = cost(stream, [&] { worst = std::max(worst, one.supports()); });
  demand(worst);
  demand(cudaGetLastError(), "the empty kernel");
  std::printf("launcher %.0f empty %.0f checks %.1f\n", launcher, bare, checks);
  return 0;
}

int timed() {
  // Warm for as long as the tool is told to: at its power cap a card takes that long to find its clock.
  constexpr int SIZE = 2048, LAUNCHES = 50, SAMPLES = 100;
  constexpr std::chrono::seconds WARM(WARM_SECONDS);
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  std::vector<__half> a(SIZE * SIZE), b(SIZE * SIZE);
  for (__half& x : a) x = __float2half(normal(engine));
  for (__half& x : b) x = __float2half(normal(engine));
  const Matrices all(SIZE, SIZE, SIZE, a, b);
  const cudaStream_t stream = new_stream();
  demand(all.launch(stream));
  demand(cudaStreamSynchronize(stream), "the first launch");

  cudaGraph_t graph;
  cudaGraphExec_t replay;
  demand(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  for (int i = 0; i < LAUNCHES; ++i) demand(all.launch(stream));
  demand(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  demand(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
  std::vector<cudaEvent_t> marks(SAMPLES + 1);
  for (cudaEvent_t& mark : marks) demand(cudaEventCreate(&mark), "cudaEventCreate");
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < WARM) {
    demand(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
    demand(cudaStreamSynchronize(stream), "the warm-up");
  }
  for (cudaEvent_t& mark : marks) {
    demand(cudaEventRecord(mark, stream), "cudaEventRecord");
    demand(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
  }
  demand(cudaStreamSynchronize(stream), "the replays");
  std::vector<double> times;
  for (int i = 0; i < SAMPLES; ++i) {
    float milliseconds;
    demand(cudaEventElapsedTime(&milliseconds, marks[i], marks[i + 1]), "cudaEventElapsedTime");
    times.push_back(milliseconds * 1e3 / LAUNCHES);
  }
  std::printf("microseconds %.3f\n", median(times));
  return 0;
}

// Integers whose sums are exact: D has one right value.
int left(int i, int k) { return (3 * i + k) % 5 - 2; }
int right(int k, int j) { return (k + 5 * j) % 3 - 1; }

// Threads start together, half of them capturing; nothing has called the launcher before.
int threads() {
  constexpr int THREADS = 16, ROUNDS = 50;
  const int m = BLOCK_M, n = 2 * BLOCK_N, k = 5 * BLOCK_K;
  std::vector<__half> a(m * k), b(k * n);
  std::vector<OUTPUT> want(m * n);
  for (int i = 0; i < m; ++i)
    for (int x = 0; x < k; ++x) a[i * k + x] = __float2half(static_cast<float>(left(i, x)));
  for (int x = 0; x < k; ++x)
    for (int j = 0; j < n; ++j) b[x * n + j] = __float2half(static_cast<float>(right(x, j)));
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      int sum = 0;
      for (int x = 0; x < k; ++x) sum += left(i, x) * right(x, j);
      want[i * n + j] = static_cast<OUTPUT>(static_cast<float>(sum));
    }
  }
  std::vector<Matrices> own;
  std::vector<cudaStream_t> streams;
  for (int t = 0; t < THREADS; ++t) {
    own.emplace_back(m, n, k, a, b);
    streams.push_back(new_stream());
  }
  std::vector<cudaGraph_t> graphs(THREADS);
  std::vector<wmmagen_status> answers(THREADS, WMMAGEN_OK);
  std::atomic<int> waiting{THREADS};
  std::vector<std::thread> running;
  for (int t = 0; t < THREADS; ++t) {
    running.emplace_back([&, t] {
      if (t % 2) demand(cudaStreamBeginCapture(streams[t], cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
      --waiting;
      while (waiting > 0) std::this_thread::yield();
      for (int i = 0; i < ROUNDS; ++i) answers[t] = std::max(answers[t], own[t].launch(streams[t]));
      if (t % 2) demand(cudaStreamEndCapture(streams[t], &graphs[t]), "cudaStreamEndCapture");
    });
  }
  for (std::thread& thread : running) thread.join();

  int exact = 0;
  for (int t = 0; t < THREADS; ++t) {
    demand(answers[t]);
    if (t % 2) {
      cudaGraphExec_t replay;
      demand(cudaGraphInstantiate(&replay, graphs[t], 0), "cudaGraphInstantiate");
      demand(cudaGraphLaunch(replay, streams[t]), "cudaGraphLaunch");
    }
    demand(cudaStreamSynchronize(streams[t]), "a thread's stream");
    std::vector<OUTPUT> got(want.size());
    demand(cudaMemcpy(got.data(), own[t].D, got.size() * sizeof(OUTPUT), cudaMemcpyDeviceToHost), "cudaMemcpy");
    exact += std::memcmp(got.data(), want.data(), got.size() * sizeof(OUTPUT)) == 0;
  }
  std::printf("exact %d of %d\n", exact, THREADS);
  return exact == THREADS ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  if (count == 2 && std::strcmp(words[1], "host") == 0) return host();
  if (count == 2 && std::strcmp(words[1], "time") == 0) return timed();
  if (count == 2 && std::strcmp(words[1], "threads") == 0) return threads();
  std::printf("host, time or threads\n");
  return 2;
}
