// Reads the bits of one stretch of entropy-coded data, undoing byte stuffing.
#pragma once

#include <cstdint>
#include <cstring>

namespace custom_op {

class BitReader {
 public:
  BitReader() = default;
  BitReader(const uint8_t* begin, const uint8_t* end) : at_(begin), end_(end) {}

  // Afterwards at least 32 bits can be taken. Behind the end of the data they are zeros.
  void refill() {
    if (bits_ >= 32) return;
    if (end_ - at_ >= 8) {
      uint64_t word;
      std::memcpy(&word, at_, 8);
      // Bytes of FF are zero bytes of ~word; the usual test for those.
      if (((~word - 0x0101010101010101) & word & 0x8080808080808080) == 0) {
        buffer_ |= __builtin_bswap64(word) >> bits_;
        at_ += (63 - bits_) >> 3;
        bits_ |= 56;
        return;
      }
    }
    refill_by_bytes();
  }

  uint32_t peek(int count) const { return static_cast<uint32_t>(buffer_ >> (64 - count)); }
  void drop(int count) {
    buffer_ <<= count;
    bits_ -= count;
  }
  // `count` in 1 ... 16.
  uint32_t take(int count) {
    const uint32_t value = peek(count);
    drop(count);
    return value;
  }

  // More bits were taken than there were.
  bool overrun() const { return bits_ < padding_; }
  // Nothing is left but the last byte's padding.
  bool exhausted() const { return at_ == end_ && bits_ - padding_ < 8; }

 private:
  void refill_by_bytes() {
    while (bits_ <= 56) {
      uint64_t byte = 0;
      if (!next_byte(byte)) padding_ += 8;
      buffer_ |= byte << (56 - bits_);
      bits_ += 8;
    }
  }

  // As libjpeg reads them: FF 00, and FF FF ... 00, stand for one FF; FF xx is a marker, the end.
  bool next_byte(uint64_t& byte) {
    if (at_ == end_) return false;
    byte = *at_++;
    if (byte != 0xFF) return true;
    while (at_ != end_ && *at_ == 0xFF) ++at_;
    if (at_ != end_ && *at_ == 0) {
      ++at_;
      return true;
    }
    byte = 0;
    at_ = end_;
    return false;
  }

  const uint8_t* at_ = nullptr;
  const uint8_t* end_ = nullptr;
  uint64_t buffer_ = 0;  // the next bit is the highest
  int bits_ = 0;         // how many of them are filled, padding included
  int padding_ = 0;      // how many of those were made up behind the end
};

}  // namespace custom_op
