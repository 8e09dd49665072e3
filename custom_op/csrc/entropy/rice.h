// Rice codes: few bits for numbers that are mostly small.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "types.h"

namespace custom_op {

// Note [Rice codes]
// A number is written as its high part in unary (that many ones, then a zero) and its low `k` bits
// as they are (R. F. Rice, 1979). If k is near the logarithm of the mean, that takes about one bit
// more than the entropy of numbers of all sizes. kEscape ones announce a number of kMostBits bits.
constexpr int kEscape = 24, kMostBits = 40;

class RiceWriter {
 public:
  explicit RiceWriter(std::vector<uint8_t>& out) : out_(out) {}

  void put(uint64_t value, int k) {
    const uint64_t high = value >> k;
    if (high >= kEscape) {
      put_bits((uint64_t{1} << kEscape) - 1, kEscape);
      put_bits(value, kMostBits);
    } else {
      put_bits((uint64_t{2} << high) - 2, static_cast<int>(high) + 1);
      put_bits(value, k);
    }
  }

  // The lowest `count` bits, the highest of them first.
  void put_bits(uint64_t value, int count) {
    for (int i = count - 1; i >= 0; --i, ++written_) {
      if (written_ % 8 == 0) out_.push_back(0);
      out_.back() = static_cast<uint8_t>(out_.back() | (value >> i & 1) << (7 - written_ % 8));
    }
  }

 private:
  std::vector<uint8_t>& out_;
  int64_t written_ = 0;
};

// Reads zeros past the end.
class RiceReader {
 public:
  explicit RiceReader(Bytes data) : data_(data) {}

  uint64_t get(int k) {
    refill();
    const int high = buffer_ == ~uint64_t{0} ? 64 : __builtin_clzll(~buffer_);
    if (high >= kEscape) {
      drop(kEscape);
      return get_bits(kMostBits);
    }
    drop(high + 1);
    return static_cast<uint64_t>(high) << k | get_bits(k);
  }

  // `count` up to kMostBits.
  uint64_t get_bits(int count) {
    refill();
    const uint64_t value = count == 0 ? 0 : buffer_ >> (64 - count);
    drop(count);
    return value;
  }

  // True if all bytes were read, and nothing past them.
  bool at_end() const { return next_ == data_.size && padding_ <= bits_ && bits_ - padding_ < 8; }

 private:
  void refill() {
    for (; bits_ <= 56; bits_ += 8) {
      if (next_ < data_.size) {
        buffer_ |= uint64_t{data_.data[next_++]} << (56 - bits_);
      } else {
        padding_ += 8;
      }
    }
  }

  void drop(int count) {
    buffer_ <<= count;
    bits_ -= count;
  }

  Bytes data_;
  size_t next_ = 0;
  uint64_t buffer_ = 0;  // the highest bit comes next
  int bits_ = 0;         // in buffer_, including padding
  int64_t padding_ = 0;  // bits past the end
};

}  // namespace custom_op
