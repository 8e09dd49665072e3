// Reads the bits of one restart segment and removes byte stuffing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

// Inlines parts of a decoding loop, whose state must stay in registers.
#define CUSTOM_OP_INLINE inline __attribute__((always_inline))

namespace custom_op {

// Note [Bits up to the next FF]
// Entropy-coded bytes are plain up to the next FF, which is either stuffed (FF 00) or the marker
// that ends the segment. The reader finds the next FF once, with memchr, instead of looking for one
// in every refill: as long as 8 plain bytes are left, a refill is one load. Past the marker or the
// end of the file, the bits are zeros and are counted as padding.
//
// The object is small and copied, so that a decoding loop keeps its copy in registers.
class BitReader {
 public:
  // Bits that are available after a refill, at least.
  static constexpr int kRefilled = 56;

  BitReader() = default;
  // `end`: of the file, which must not end with FF.
  BitReader(const uint8_t* begin, const uint8_t* end) : at_(begin), end_(end) { find_ff(); }

  // Starts at a bit of the first byte, from 0 to 7.
  BitReader(const uint8_t* begin, int bit, const uint8_t* end) : BitReader(begin, end) {
    refill();
    drop(bit);
  }

  // Afterwards, at least kRefilled bits can be taken.
  void refill() {
    if (__builtin_expect(at_ < safe_, 1)) {
      add(load(), (63 - bits_) >> 3);
    } else {
      refill_with_care();
    }
  }

  uint32_t peek(int count) const { return static_cast<uint32_t>(buffer_ >> (64 - count)); }
  void drop(int count) {
    buffer_ <<= count;
    bits_ = static_cast<uint8_t>(bits_ - count);
  }
  // Drops as many bits as the lowest byte of a table's entry says, at most 63.
  void drop_by(uint64_t entry) {
    buffer_ <<= entry & 63;
    bits_ = static_cast<uint8_t>(bits_ - entry);
  }
  // `count` in 1 ... 16.
  uint32_t take(int count) {
    const uint32_t value = peek(count);
    drop(count);
    return value;
  }

  // True if more bits were taken than the segment holds, or if libjpeg may want to read past the
  // end of the file, since no marker ends the segment. It depends on the position alone, not on how
  // far the reader is ahead of it. `begin`: where the scan starts.
  bool overrun(const uint8_t* begin) const {
    return bits_ < padding_ || (end_ - at_ <= kAhead && !has_marker_ahead(begin));
  }
  // The position of the next bit, in bits from the start of the file, stuffed bytes included.
  // `begin`: where the scan starts, in the file that starts at `file`.
  uint64_t position(const uint8_t* begin, const uint8_t* file) const {
    return 8 * static_cast<uint64_t>(next_byte(begin) - file) + static_cast<uint64_t>(-held() & 7);
  }
  // True if only the padding of the last byte is left.
  bool exhausted() const { return at_ == ff_ && !stuffed_ && held() < 8; }

 private:
  // libjpeg never reads this many bytes ahead of what it decodes.
  static constexpr int64_t kAhead = 64;

  int held() const { return bits_ - padding_; }

  // The byte that holds the next bit.
  const uint8_t* next_byte(const uint8_t* begin) const {
    const uint8_t* at = at_;
    for (int left = held(); left > 0; left -= 8) {
      --at;
      if (at > begin && *at == 0 && at[-1] == 0xFF) --at;
    }
    return at;
  }

  // True if a marker or more than kAhead bytes follow.
  bool has_marker_ahead(const uint8_t* begin) const {
    if (end_ - next_byte(begin) > kAhead) return true;
    for (const uint8_t* ff = ff_; ff != end_;) {
      const uint8_t* code = ff + 1;
      while (*code == 0xFF) ++code;
      if (*code != 0) return true;
      // Several FF before a zero are one FF of the data, but this reader stops before them.
      if (code > ff + 1) return false;
      const void* next = std::memchr(code, 0xFF, static_cast<size_t>(end_ - code));
      ff = next == nullptr ? end_ : static_cast<const uint8_t*>(next);
    }
    return false;
  }

  uint64_t load() const {
    uint64_t word;
    std::memcpy(&word, at_, 8);
    return __builtin_bswap64(word);
  }

  // Only the next `bytes` bytes, from 1 to 7, then zeros.
  uint64_t load(int bytes) const {
    if (end_ - at_ >= 8) return load() & ~uint64_t{0} << (64 - 8 * bytes);
    uint64_t word = 0;
    std::memcpy(&word, at_, static_cast<size_t>(bytes));
    return __builtin_bswap64(word);
  }

  // Adds the first `bytes` bytes of `word`. The rest of it must be what follows, or zeros.
  void add(uint64_t word, int bytes) {
    buffer_ |= word >> bits_;
    at_ += bytes;
    bits_ = static_cast<uint8_t>(bits_ + 8 * bytes);
  }

  CUSTOM_OP_INLINE void find_ff() {
    const auto left = static_cast<size_t>(end_ - at_);
    const void* found = left == 0 ? nullptr : std::memchr(at_, 0xFF, left);
    ff_ = found == nullptr ? end_ : static_cast<const uint8_t*>(found);
    stuffed_ = ff_ != end_ && ff_[1] == 0;
    safe_ = ff_ - std::min<int64_t>(ff_ - at_, 7);
  }

  CUSTOM_OP_INLINE void refill_with_care() {
    while (bits_ < kRefilled) {
      const int room = (63 - bits_) >> 3;
      const int64_t plain = ff_ - at_;
      if (plain > 0) {
        const int bytes = static_cast<int>(std::min<int64_t>(plain, room));
        add(load(bytes), bytes);
      } else if (stuffed_) {
        add(uint64_t{0xFF} << 56, 1);
        ++at_;
        find_ff();
      } else {
        bits_ = static_cast<uint8_t>(bits_ + 8 * room);
        padding_ += 8 * room;
      }
    }
  }

  const uint8_t* at_ = nullptr;
  const uint8_t* safe_ = nullptr;  // a load from before here meets no FF
  uint64_t buffer_ = 0;            // the highest bit comes next
  uint8_t bits_ = 0;               // number of bits in buffer_, including padding
  int padding_ = 0;                // number of those that lie past the end of the segment
  const uint8_t* ff_ = nullptr;    // the next FF; `end_` for none
  const uint8_t* end_ = nullptr;
  bool stuffed_ = false;  // true if the next FF is data
};

}  // namespace custom_op
