//go:build linux

package firewall

import (
	"encoding/binary"
	"hash"
	"hash/fnv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The legacy variant has neither notifications nor a generation number, and iptables-legacy-save is expensive on a host
// with many rules. But getsockopt returns a table as the kernel stores it, and a hash of that shows any change.

// layout holds byte offsets within struct ipt_entry or ip6t_entry: of the offset of the next entry, and of the
// counters.
type layout struct {
	domain, level  int
	next, counters int
}

var (
	layout4 = layout{unix.AF_INET, unix.SOL_IP, 90, 96}
	layout6 = layout{unix.AF_INET6, unix.SOL_IPV6, 142, 152}
)

const (
	soGetInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	soGetEntries = 65
	nameSize     = 32 // XT_TABLE_MAXNAMELEN
	infoSize     = 84 // struct ipt_getinfo; its last field is the size of all entries
	headSize     = 40 // struct ipt_get_entries: name, size, padding
	countersSize = 16
)

// digest returns a hash of legacy tables without their packet counters; 0: unknown. The tables must exist, because
// asking for one creates it. 20,000 rules take about 10 ms.
func (l layout) digest(tables []string) uint64 {
	fd, err := unix.Socket(l.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	h := fnv.New64a()
	for _, table := range tables {
		h.Write([]byte(table))
		if !l.hashTable(h, fd, table) {
			return 0
		}
	}
	return h.Sum64()
}

// hashTable adds one table to h. It returns false if the kernel does not answer as expected, or if the table changes
// meanwhile.
func (l layout) hashTable(h hash.Hash, fd int, table string) bool {
	info := make([]byte, infoSize)
	copy(info[:nameSize-1], table)
	if !getsockopt(fd, l.level, soGetInfo, info) {
		return false
	}
	size := binary.NativeEndian.Uint32(info[infoSize-4:])
	all := make([]byte, headSize+int(size))
	copy(all[:nameSize-1], table)
	binary.NativeEndian.PutUint32(all[nameSize:], size)
	// This fails if the size of the table changed since the first call.
	if !getsockopt(fd, l.level, soGetEntries, all) {
		return false
	}
	// All offsets are checked, because a 32-bit program may get another layout.
	for entries := all[headSize:]; len(entries) > 0; {
		if len(entries) < l.counters+countersSize {
			return false
		}
		next := int(binary.NativeEndian.Uint16(entries[l.next:]))
		if next < l.counters+countersSize || next > len(entries) {
			return false
		}
		// Packets must not look like a change. The state of matches such as limit is not in the entries.
		clear(entries[l.counters : l.counters+countersSize])
		h.Write(entries[:next])
		entries = entries[next:]
	}
	return true
}

// getsockopt reports whether the kernel filled all of buf. The beginning of buf is the request.
func getsockopt(fd, level, option int, buf []byte) bool {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	return errno == 0 && int(size) == len(buf)
}
