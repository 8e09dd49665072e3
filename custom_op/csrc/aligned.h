// Buffers for vector code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace custom_op {

// Note [Aligned buffers]
// A store that crosses the border of two cache lines takes several times as long as one that does
// not. So buffers and the rows inside them start on such a border.
constexpr int64_t kCacheLine = 64;

template <typename T>
struct CacheLineAllocator {
  using value_type = T;

  CacheLineAllocator() = default;
  template <typename U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}

  T* allocate(size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{kCacheLine}));
  }
  void deallocate(T* memory, size_t) { ::operator delete(memory, std::align_val_t{kCacheLine}); }

  template <typename U>
  bool operator==(const CacheLineAllocator<U>&) const {
    return true;
  }
  template <typename U>
  bool operator!=(const CacheLineAllocator<U>&) const {
    return false;
  }
};

template <typename T>
using AlignedVector = std::vector<T, CacheLineAllocator<T>>;

// The distance between the starts of two rows of `bytes` bytes: whole cache lines. Their number is
// odd, so that the rows do not compete for the same sets of a cache.
inline int64_t aligned_stride(int64_t bytes) {
  return ((bytes + kCacheLine - 1) / kCacheLine | 1) * kCacheLine;
}

}  // namespace custom_op
