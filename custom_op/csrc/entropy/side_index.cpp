#include "entropy/side_index.h"

#include <algorithm>
#include <cstring>

#include "entropy/rice.h"

namespace custom_op {
namespace {

constexpr std::array<uint8_t, 4> kMagic{'J', 'I', 'X', 2};
constexpr size_t kChecksum = 24, kParameters = 28, kHeaderBytes = 33;
constexpr int kCheckBits = 8, kMostParameter = 39;
constexpr uint64_t kMix = 0x9E3779B97F4A7C15;  // 2^64 divided by the golden ratio

void put(std::vector<uint8_t>& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<uint8_t>(value >> (8 * i)));
}

uint64_t get(const uint8_t* at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= uint64_t{at[i]} << (8 * i);
  return value;
}

uint64_t zigzag(int64_t value) {
  return static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63);
}

int64_t unzigzag(uint64_t value) {
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * kMix;
  return hash ^ hash >> 29;
}

// Up to 8 bytes, then zeros.
uint64_t load(const uint8_t* at, size_t bytes) {
  uint64_t word = 0;
  std::memcpy(&word, at, std::min<size_t>(bytes, 8));
  return word;
}

uint8_t check_at(Bytes jpeg, uint64_t bit) {
  const size_t byte = bit >> 3;
  return static_cast<uint8_t>(mixed(0, load(jpeg.data + byte, jpeg.size - byte)) >> 56);
}

uint64_t hash_range(uint64_t hash, const uint8_t* at, const uint8_t* end) {
  for (; at < end; at += 8) hash = mixed(hash, load(at, static_cast<size_t>(end - at)));
  return hash;
}

uint32_t checksum(Bytes index) {
  const uint64_t hash = hash_range(index.size, index.data, index.data + kChecksum);
  const uint64_t all = hash_range(hash, index.data + kParameters, index.data + index.size);
  return static_cast<uint32_t>(all >> 32);
}

bool is_metadata(uint8_t marker) { return (marker >= 0xE0 && marker <= 0xEF) || marker == 0xFE; }

uint64_t hash_header(Bytes jpeg, const Header& header) {
  uint64_t hash = mixed(0, header.scan_data);
  for (const Segment& segment : header.segments) {
    if (is_metadata(segment.marker)) continue;
    hash = hash_range(hash, jpeg.data + segment.begin, jpeg.data + segment.end);
  }
  return hash;
}

// Bits between two entries, and the zigzag-coded change of each predictor.
using Numbers = std::array<uint64_t, 5>;

Numbers difference(const SideIndex::Entry& before, const SideIndex::Entry& entry) {
  Numbers numbers{entry.bit - before.bit};
  for (size_t c = 0; c < entry.predictors.size(); ++c) {
    numbers[c + 1] = zigzag(entry.predictors[c] - before.predictors[c]);
  }
  return numbers;
}

// The logarithm of the mean, rounded down.
int parameter_for(uint64_t sum, size_t count) {
  const uint64_t mean = sum / count;
  return mean == 0 ? 0 : std::min(63 - __builtin_clzll(mean), kMostParameter);
}

}  // namespace

void SideIndex::clear() {
  interval_ = 0;
  entries_.clear();
}

void SideIndex::begin(int64_t interval, uint64_t first_bit) {
  interval_ = interval;
  entries_.assign(1, {first_bit, {}, 0});
}

void SideIndex::add(uint64_t bit, const std::array<int32_t, 4>& predictors, Bytes jpeg) {
  Entry entry{bit, {}, check_at(jpeg, bit)};
  for (size_t i = 0; i < predictors.size(); ++i) {
    entry.predictors[i] = static_cast<int16_t>(predictors[i]);
  }
  entries_.push_back(entry);
}

std::vector<uint8_t> SideIndex::serialize(Bytes jpeg, const Header& header) const {
  std::vector<uint8_t> out(kMagic.begin(), kMagic.end());
  out.reserve(kHeaderBytes + 8 * entries_.size());
  put(out, static_cast<uint64_t>(interval_), 4);
  put(out, jpeg.size, 8);
  put(out, hash_header(jpeg, header), 8);
  put(out, 0, 4);  // the checksum, once all else is known
  Numbers sums{};
  for (size_t i = 1; i < entries_.size(); ++i) {
    const Numbers found = difference(entries_[i - 1], entries_[i]);
    for (size_t j = 0; j < found.size(); ++j) sums[j] += found[j];
  }
  std::array<int, 5> parameters{};
  for (size_t j = 0; j < parameters.size(); ++j) {
    parameters[j] = parameter_for(sums[j], entries_.size());
    put(out, static_cast<uint64_t>(parameters[j]), 1);
  }
  RiceWriter writer(out);
  const auto count = static_cast<size_t>(header.component_count) + 1;
  for (size_t i = 1; i < entries_.size(); ++i) {
    const Numbers found = difference(entries_[i - 1], entries_[i]);
    for (size_t j = 0; j < count; ++j) writer.put(found[j], parameters[j]);
    writer.put_bits(entries_[i].check, kCheckBits);
  }
  const uint32_t sum = checksum({out.data(), out.size()});
  for (int i = 0; i < 4; ++i) {
    out[kChecksum + static_cast<size_t>(i)] = static_cast<uint8_t>(sum >> (8 * i));
  }
  return out;
}

bool SideIndex::parse(Bytes index, Bytes jpeg, const Header& header) {
  clear();
  if (index.size < kHeaderBytes || !std::equal(kMagic.begin(), kMagic.end(), index.data) ||
      get(index.data + 8, 8) != jpeg.size || get(index.data + 16, 8) != hash_header(jpeg, header) ||
      get(index.data + kChecksum, 4) != checksum(index)) {
    return false;
  }
  const auto interval = static_cast<int64_t>(get(index.data + 4, 4));
  const uint8_t* const parameters = index.data + kParameters;
  if (interval == 0 || *std::max_element(parameters, parameters + 5) > kMostParameter) return false;
  const int64_t mcus = header.mcu_rows * header.mcus_per_row;
  const auto count = static_cast<size_t>(divide_up(mcus, interval));
  // An entry has more than a byte: a false count takes no memory.
  if (count > index.size) return false;
  entries_.resize(count);
  Entry entry{8 * header.scan_data, {}, 0};
  entries_[0] = entry;
  RiceReader reader({index.data + kHeaderBytes, index.size - kHeaderBytes});
  for (size_t i = 1; i < count; ++i) {
    entry.bit += reader.get(parameters[0]);
    for (int c = 0; c < header.component_count; ++c) {
      const int64_t change = unzigzag(reader.get(parameters[c + 1]));
      entry.predictors[c] = static_cast<int16_t>(entry.predictors[c] + change);
    }
    entry.check = static_cast<uint8_t>(reader.get_bits(kCheckBits));
    entries_[i] = entry;
  }
  if (!reader.at_end()) return false;
  interval_ = interval;
  return true;
}

bool SideIndex::find(int64_t number, Bytes jpeg, Entry& entry) const {
  entry = entries_[static_cast<size_t>(number)];
  return number == 0 || (entry.bit < 8 * jpeg.size && entry.check == check_at(jpeg, entry.bit));
}

}  // namespace custom_op
