#include "entropy/side_index.h"

#include <algorithm>
#include <cstring>

#include "entropy/rice.h"

namespace custom_op {
namespace {

constexpr std::array<uint8_t, 4> kMagic{'J', 'I', 'X', 1};
constexpr size_t kChecksum = 24, kParameters = 28, kHeaderBytes = 34;
constexpr int kCheckBits = 8, kMostParameter = 39;
// Parts of the file that the fingerprint covers; sizes in bytes.
constexpr size_t kAtEnds = 64, kBetween = 16, kParts = 8;
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

// The bytes from `at` on, as far as the file has them.
uint64_t hash_part(uint64_t hash, Bytes jpeg, size_t at, size_t bytes) {
  return hash_range(hash, jpeg.data + at, jpeg.data + std::min(at + bytes, jpeg.size));
}

uint64_t fingerprint(const SideIndex::Scan& scan, size_t end) {
  const Bytes jpeg = scan.jpeg;
  const size_t begin = scan.header.scan_data, length = end - begin;
  uint64_t hash = mixed(mixed(jpeg.size, begin), end);
  for (const Segment& segment : scan.header.segments) {
    if (is_metadata(segment.marker)) continue;
    hash = hash_range(hash, jpeg.data + segment.begin, jpeg.data + segment.end);
  }
  hash = hash_part(hash, jpeg, begin, kAtEnds);
  for (size_t part = 1; part < kParts; ++part) {
    hash = hash_part(hash, jpeg, begin + length / kParts * part, kBetween);
  }
  const size_t last = std::min(length, kAtEnds);
  return hash_part(hash, jpeg, end - last, last + 2);  // and the marker that follows
}

// Groups and bits as in Note [Side index], and the zigzag-coded change of each predictor.
using Numbers = std::array<uint64_t, 6>;

// The bit at or after which the entry that follows another is due.
uint64_t next_due(uint64_t bit, uint64_t first_bit, uint64_t spacing) {
  return first_bit + ((bit - first_bit) / spacing + 1) * spacing;
}

// The logarithm of the mean, rounded down.
int parameter_for(uint64_t sum, size_t count) {
  const uint64_t mean = sum / count;
  return mean == 0 ? 0 : std::min(63 - __builtin_clzll(mean), kMostParameter);
}

std::vector<Numbers> numbers_of(const std::vector<SideIndex::Entry>& entries, int64_t group,
                                uint64_t spacing) {
  std::vector<Numbers> all;
  for (size_t i = 1; i < entries.size(); ++i) {
    const SideIndex::Entry &before = entries[i - 1], &entry = entries[i];
    const uint64_t due = next_due(before.bit, entries[0].bit, spacing);
    Numbers& numbers = all.emplace_back();
    numbers[0] = static_cast<uint64_t>((entry.mcu - before.mcu) / group - 1);
    numbers[1] = entry.bit - due;
    for (size_t c = 0; c < entry.predictors.size(); ++c) {
      numbers[c + 2] = zigzag(entry.predictors[c] - before.predictors[c]);
    }
  }
  return all;
}

}  // namespace

void SideIndex::begin(const Scan& scan, uint64_t spacing) {
  spacing_ = 8 * spacing;
  entries_.assign(1, {0, 8 * scan.header.scan_data, {}, 0});
  due_ = next_due(entries_[0].bit, entries_[0].bit, spacing_);
}

void SideIndex::add(int64_t mcu, uint64_t bit, const std::array<int32_t, 4>& predictors,
                    Bytes jpeg) {
  if (bit < due_) return;
  Entry entry{mcu, bit, {}, check_at(jpeg, bit)};
  for (size_t i = 0; i < predictors.size(); ++i) {
    entry.predictors[i] = static_cast<int16_t>(predictors[i]);
  }
  entries_.push_back(entry);
  due_ = next_due(bit, entries_[0].bit, spacing_);
}

std::vector<uint8_t> SideIndex::serialize(const Scan& scan, size_t end, size_t most_bytes) {
  while (entries_.size() > 1) {
    std::vector<uint8_t> index = write(scan, end);
    if (index.size() <= most_bytes) return index;
    spacing_ += spacing_ / 8 + 1;
    thin_out();
  }
  return {};
}

// Leaves the entries that an index with this spacing would have had.
void SideIndex::thin_out() {
  const uint64_t first = entries_[0].bit;
  uint64_t due = next_due(first, first, spacing_);
  const auto is_early = [&](const Entry& entry) {
    if (entry.bit < due) return true;
    due = next_due(entry.bit, first, spacing_);
    return false;
  };
  entries_.erase(std::remove_if(entries_.begin() + 1, entries_.end(), is_early), entries_.end());
}

std::vector<uint8_t> SideIndex::write(const Scan& scan, size_t end) const {
  std::vector<uint8_t> out(kMagic.begin(), kMagic.end());
  out.reserve(kHeaderBytes + 8 * entries_.size());
  put(out, spacing_, 4);
  put(out, entries_.size() - 1, 4);
  put(out, end, 4);
  put(out, fingerprint(scan, end), 8);
  put(out, 0, 4);  // the checksum, once all else is known
  const std::vector<Numbers> all = numbers_of(entries_, scan.group, spacing_);
  std::array<int, 6> parameters{};
  for (size_t i = 0; i < parameters.size(); ++i) {
    uint64_t sum = 0;
    for (const Numbers& numbers : all) sum += numbers[i];
    parameters[i] = parameter_for(sum, all.size());
    put(out, static_cast<uint64_t>(parameters[i]), 1);
  }
  RiceWriter writer(out);
  const auto count = static_cast<size_t>(scan.header.component_count) + 2;
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < count; ++j) writer.put(all[i][j], parameters[j]);
    writer.put_bits(entries_[i + 1].check, kCheckBits);
  }
  const uint32_t sum = checksum({out.data(), out.size()});
  for (int i = 0; i < 4; ++i) {
    out[kChecksum + static_cast<size_t>(i)] = static_cast<uint8_t>(sum >> (8 * i));
  }
  return out;
}

bool SideIndex::parse(Bytes index, const Scan& scan) {
  clear();
  if (index.size < kHeaderBytes || !std::equal(kMagic.begin(), kMagic.end(), index.data) ||
      get(index.data + kChecksum, 4) != checksum(index)) {
    return false;
  }
  const uint64_t spacing = get(index.data + 4, 4), count = get(index.data + 8, 4);
  const uint64_t end = get(index.data + 12, 4);
  const uint8_t* const parameters = index.data + kParameters;
  // An entry takes more than a byte, so a false count cannot claim memory.
  if (spacing == 0 || count > index.size || end < scan.header.scan_data || end > scan.jpeg.size ||
      get(index.data + 16, 8) != fingerprint(scan, end) ||
      *std::max_element(parameters, parameters + 6) > kMostParameter) {
    return false;
  }
  const uint64_t first = 8 * scan.header.scan_data;
  Entry entry{0, first, {}, 0};
  entries_.assign(1, entry);
  uint64_t due = first + spacing;
  RiceReader reader({index.data + kHeaderBytes, index.size - kHeaderBytes});
  for (size_t i = 0; i < count; ++i) {
    entry.mcu += static_cast<int64_t>(reader.get(parameters[0]) + 1) * scan.group;
    entry.bit = due + reader.get(parameters[1]);
    due += spacing;
    if (due <= entry.bit) due = next_due(entry.bit, first, spacing);
    for (int c = 0; c < scan.header.component_count; ++c) {
      const int64_t change = unzigzag(reader.get(parameters[c + 2]));
      entry.predictors[c] = static_cast<int16_t>(entry.predictors[c] + change);
    }
    entry.check = static_cast<uint8_t>(reader.get_bits(kCheckBits));
    entries_.push_back(entry);
  }
  if (!reader.at_end()) clear();
  return !empty();
}

const SideIndex::Entry& SideIndex::before(int64_t mcu) const {
  const auto is_behind = [](int64_t wanted, const Entry& entry) { return wanted < entry.mcu; };
  return *(std::upper_bound(entries_.begin(), entries_.end(), mcu, is_behind) - 1);
}

bool SideIndex::fits(const Entry& entry, Bytes jpeg) {
  return entry.mcu == 0 || (entry.bit < 8 * jpeg.size && entry.check == check_at(jpeg, entry.bit));
}

}  // namespace custom_op
