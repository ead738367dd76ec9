// Calls of an emitted launcher, my_gemm, against tests/fake/cudart.cpp: what it
// keeps between calls, and what it says. Prints what is wrong, and nothing
// else. ARGUMENTS, of facts.h, is a call that the launcher takes.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "cudart.h"
#include "facts.h"
#include "my_gemm.h"

namespace {

int wrong = 0;

void equal(long long is, long long should, const char* what) {
  if (is == should) return;
  std::printf("%s: %lld, not %lld\n", what, is, should);
  wrong = 1;
}

void* at(std::size_t address) { return reinterpret_cast<void*>(address); }
wmmagen_status call(cudaStream_t stream) { return my_gemm(ARGUMENTS, stream); }
wmmagen_status supports() { return my_gemm_supports(ARGUMENTS); }

void on_a_device_that_is_right(cudaStream_t stream) {
  equal(supports(), WMMAGEN_OK, "supports");
  equal(fake.attributes, 1, "it opts in before the first launch");
  for (int i = 0; i < 100; ++i) equal(call(stream), WMMAGEN_OK, "a call");
  equal(fake.attributes, 1, "and only once");

  cudaSetDevice(1);
  equal(call(stream), WMMAGEN_OK, "a call on the second device");
  equal(call(stream), WMMAGEN_OK, "another one");
  equal(fake.attributes, 2, "which has a flag of its own");
  cudaSetDevice(70);
  for (int i = 0; i < 3; ++i)
    equal(call(stream), WMMAGEN_OK, "a call on a device beyond the flags");
  equal(fake.attributes, 5, "which is asked every time");
  cudaSetDevice(0);

  cudaDeviceReset();
  equal(call(stream), WMMAGEN_OK, "a call in a context that knows nothing");
  equal(cudaGetLastError(), cudaSuccess, "the last error behind it");
  cudaDeviceReset();

  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([stream] {
      for (int i = 0; i < 1000; ++i)
        equal(call(stream), WMMAGEN_OK, "a call of a thread");
    });
  }
  for (std::thread& thread : threads) thread.join();
  equal(fake.launches, 100 + 2 + 3 + 1 + 8 * 1000, "launches");
  equal(fake.strangers, 0, "launches on another stream");
}

}  // namespace

int main(int count, char** words) {
  fake.stream =
      at(64);  // a stream is an address, and this one is looked at by nobody
  const cudaStream_t stream = static_cast<cudaStream_t>(fake.stream);
  if (count == 1) {
    on_a_device_that_is_right(stream);
  } else {
    // What a faulty device makes of a call, beforehand and at the launch; and
    // the error is told once.
    equal(supports(), std::atoi(words[1]), "supports");
    equal(call(stream), std::atoi(words[2]), "the call");
    equal(call(stream), std::atoi(words[2]), "the call again");
    equal(cudaGetLastError(), cudaSuccess, "the last error behind them");
    equal(fake.launches, 0, "launches");
  }
  return wrong;
}
