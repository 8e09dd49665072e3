#include "augment/statistics.h"

#include <algorithm>

#include "augment/recolor.h"

namespace custom_op {
namespace {

struct Limits {
  std::array<uint8_t, 3> least{255, 255, 255}, most{};
};

Limits limits_of(const Canvas& canvas) {
  // Of each column first: a loop that compilers vectorize.
  const auto values = static_cast<size_t>(canvas.row_values());
  std::vector<uint8_t> least(values, 255), most(values, 0);
  for (int64_t y = 0; y < canvas.size(); ++y) {
    const uint8_t* row = canvas.row(y);
    for (size_t i = 0; i < values; ++i) {
      least[i] = std::min(least[i], row[i]);
      most[i] = std::max(most[i], row[i]);
    }
  }
  Limits limits;
  for (size_t i = 0; i < values; ++i) {
    limits.least[i % 3] = std::min(limits.least[i % 3], least[i]);
    limits.most[i % 3] = std::max(limits.most[i % 3], most[i]);
  }
  return limits;
}

// In float32, as torchvision computes it: the result is not rounded but truncated.
LookupTable stretched(float least, float most) {
  const float scale = most > least ? (most - least) * static_cast<float>(1.0 / 255) : 1;
  const float base = most > least ? least : 0;
  LookupTable table;
  for (size_t value = 0; value < table.size(); ++value) {
    table[value] =
        static_cast<uint8_t>(std::clamp((static_cast<float>(value) - base) / scale, 0.F, 255.F));
  }
  return table;
}

using Histogram = std::array<int32_t, 256>;

// Counts neighbors apart: a processor waits for the store of a counter before it loads it again.
std::array<Histogram, 3> histograms(const Canvas& canvas) {
  std::array<Histogram, 12> counts{};
  const uint8_t* values = canvas.row(0);
  const int64_t count = canvas.values();
  int64_t i = 0;
  for (; i + 12 <= count; i += 12) {
    for (size_t j = 0; j < 12; ++j) ++counts[j][values[i + static_cast<int64_t>(j)]];
  }
  for (size_t j = 0; i < count; ++i, ++j) ++counts[j][values[i]];
  std::array<Histogram, 3> sums{};
  for (size_t j = 0; j < 12; ++j) {
    for (size_t value = 0; value < 256; ++value) sums[j % 3][value] += counts[j][value];
  }
  return sums;
}

// Pillow's scheme: the pixels of the largest value do not count.
LookupTable equalized(const Histogram& histogram, int64_t pixels) {
  size_t largest = 255;
  while (largest > 0 && histogram[largest] == 0) --largest;
  const int64_t step = (pixels - histogram[largest]) / 255;
  LookupTable table;
  int64_t below = step / 2;
  for (size_t value = 0; value < table.size(); ++value) {
    table[value] = static_cast<uint8_t>(step == 0 ? static_cast<int64_t>(value)
                                                  : std::min<int64_t>(below / step, 255));
    below += histogram[value];
  }
  return table;
}

}  // namespace

double mean_gray(const Canvas& canvas) {
  int64_t sum = 0;
  for (int64_t y = 0; y < canvas.size(); ++y) {
    const uint8_t* row = canvas.row(y);
    int32_t of_row = 0;
    for (int64_t x = 0; x < canvas.size(); ++x) {
      of_row += gray_of(row[3 * x], row[3 * x + 1], row[3 * x + 2]);
    }
    sum += of_row;
  }
  return static_cast<double>(sum) / static_cast<double>(canvas.size() * canvas.size());
}

std::array<LookupTable, 3> autocontrast_tables(const Canvas& canvas) {
  const Limits limits = limits_of(canvas);
  std::array<LookupTable, 3> tables;
  for (size_t c = 0; c < 3; ++c) tables[c] = stretched(limits.least[c], limits.most[c]);
  return tables;
}

std::array<LookupTable, 3> equalize_tables(const Canvas& canvas) {
  const std::array<Histogram, 3> counts = histograms(canvas);
  std::array<LookupTable, 3> tables;
  for (size_t c = 0; c < 3; ++c) {
    tables[c] = equalized(counts[c], canvas.size() * canvas.size());
  }
  return tables;
}

}  // namespace custom_op
