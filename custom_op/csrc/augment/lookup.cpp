#include "augment/lookup.h"

#include <algorithm>

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

LookupTable invert_table() {
  return table_of([](int value) { return 255 - value; });
}

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

}  // namespace custom_op
