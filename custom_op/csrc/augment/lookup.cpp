#include "augment/lookup.h"

#include <algorithm>

#ifdef __AVX512VBMI__
#include <immintrin.h>
#endif

namespace custom_op {
namespace {

template <typename Map>
LookupTable table_of(Map map) {
  LookupTable table;
  for (int value = 0; value < 256; ++value) {
    table[static_cast<size_t>(value)] = static_cast<uint8_t>(map(value));
  }
  return table;
}

template <typename Number>
Number clamped(Number value) {
  return std::clamp<Number>(value, 0, 255);
}

}  // namespace

LookupTable brightness_table(float factor) {
  return table_of([=](int value) { return clamped(static_cast<float>(value) * factor); });
}

LookupTable contrast_table(float factor, double mean) {
  const double constant = mean * (1 - double{factor});
  return table_of([=](int value) { return clamped(value * double{factor} + constant); });
}

LookupTable posterize_table(int bits) {
  return table_of([=](int value) { return value & (0xFF00 >> bits); });
}

LookupTable solarize_table(float threshold) {
  return table_of(
      [=](int value) { return static_cast<float>(value) >= threshold ? 255 - value : value; });
}

LookupTable solarize_add_table(int addition) {
  return table_of([=](int value) { return value < 128 ? clamped(value + addition) : value; });
}

LookupTable invert_table() {
  return table_of([](int value) { return 255 - value; });
}

#ifdef __AVX512VBMI__

namespace {

// Looks up 64 bytes at once: each half of the table fills two registers.
class WideTable {
 public:
  explicit WideTable(const LookupTable& table) {
    for (size_t i = 0; i < 4; ++i) parts_[i] = _mm512_loadu_si512(table.data() + 64 * i);
  }
  __m512i operator()(__m512i values) const {
    const __m512i low = _mm512_permutex2var_epi8(parts_[0], values, parts_[1]);
    const __m512i high = _mm512_permutex2var_epi8(parts_[2], values, parts_[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(values), low, high);
  }

 private:
  __m512i parts_[4];
};

}  // namespace

void look_up(const LookupTable& table, Canvas& canvas) {
  const WideTable wide(table);
  for (uint8_t *at = canvas.row(0), *end = at + canvas.values(); at < end; at += 64) {
    _mm512_storeu_si512(at, wide(_mm512_loadu_si512(at)));
  }
}

void look_up(const std::array<LookupTable, 3>& tables, Canvas& canvas) {
  const WideTable red(tables[0]), green(tables[1]), blue(tables[2]);
  // 64 = 3 * 21 + 1, so each vector starts one channel after the one before it.
  constexpr uint64_t kEveryThird = 0x9249249249249249;
  constexpr __mmask64 kGreen[] = {kEveryThird << 1, kEveryThird, kEveryThird << 2};
  constexpr __mmask64 kBlue[] = {kEveryThird << 2, kEveryThird << 1, kEveryThird};
  int vector = 0;
  for (uint8_t *at = canvas.row(0), *end = at + canvas.values(); at < end; at += 64) {
    const __m512i values = _mm512_loadu_si512(at);
    __m512i mapped = _mm512_mask_blend_epi8(kGreen[vector], red(values), green(values));
    mapped = _mm512_mask_blend_epi8(kBlue[vector], mapped, blue(values));
    _mm512_storeu_si512(at, mapped);
    vector = vector == 2 ? 0 : vector + 1;
  }
}

#else

void look_up(const LookupTable& table, Canvas& canvas) {
  uint8_t* values = canvas.row(0);
  const int64_t count = canvas.values();
  for (int64_t i = 0; i < count; ++i) values[i] = table[values[i]];
}

void look_up(const std::array<LookupTable, 3>& tables, Canvas& canvas) {
  uint8_t* values = canvas.row(0);
  const int64_t count = canvas.values();
  for (int64_t i = 0; i < count; i += 3) {
    for (size_t c = 0; c < 3; ++c)
      values[i + static_cast<int64_t>(c)] = tables[c][values[i + static_cast<int64_t>(c)]];
  }
}

#endif

}  // namespace custom_op
