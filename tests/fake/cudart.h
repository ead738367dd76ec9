// What a program may ask of the CUDA runtime that tests/fake/cudart.cpp plays.
#pragma once

#include <atomic>
#include <cstddef>

struct FakeCuda {
  std::atomic<int> attributes{
      0};  // how often a kernel was asked for more shared memory
  std::atomic<int> launches{0};  // how many kernels were started
  std::atomic<int> strangers{
      0};  // how many of them on another stream than the one below
  void* stream = nullptr;  // the stream that a test expects
};
extern FakeCuda fake;
