// Reads the bits of one range of entropy-coded bytes and removes byte stuffing.
#pragma once

#include <cstdint>
#include <cstring>

namespace custom_op {

class BitReader {
 public:
  BitReader() = default;
  BitReader(const uint8_t* begin, const uint8_t* end) : at_(begin), end_(end) {}

  // Afterwards, at least 32 bits can be taken. Bits past the end of the data are zeros.
  void refill() {
    if (bits_ >= 32) return;
    if (end_ - at_ >= 8) {
      uint64_t word;
      std::memcpy(&word, at_, 8);
      // The usual test for zero bytes, applied to ~word: true if no byte is FF.
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

  // True if more bits were taken than the data holds.
  bool overrun() const { return bits_ < padding_; }
  // True if only the padding of the last byte is left.
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

  // Like libjpeg: FF 00 and FF FF ... 00 stand for one FF; FF xx is a marker and ends the data.
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
  uint64_t buffer_ = 0;  // the highest bit comes next
  int bits_ = 0;         // number of bits in buffer_, including padding
  int padding_ = 0;      // number of those that lie past the end of the data
};

}  // namespace custom_op
