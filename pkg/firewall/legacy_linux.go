//go:build linux

package firewall

import (
	"encoding/binary"
	"hash"
	"hash/fnv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The legacy variant has neither notifications nor a generation, and iptables-legacy-save is dear on a host with many
// rules. But the kernel hands out a table as it keeps it, and a digest of that tells whether anybody changed it.

// layout is where struct ipt_entry and ip6t_entry have what we need, in bytes.
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

// digest is a number for the content of legacy tables, packet counts left out; 0: cannot tell. Only tables that exist
// may be asked for, since asking makes them. 20,000 rules take some 10 ms, and no process.
func (l layout) digest(tables []string) uint64 {
	fd, err := unix.Socket(l.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	h := fnv.New64a()
	for _, table := range tables {
		h.Write([]byte(table))
		if !l.add(h, fd, table) {
			return 0
		}
	}
	return h.Sum64()
}

// add hashes one table; false if the kernel does not answer as expected, or the table changes right now.
func (l layout) add(h hash.Hash, fd int, table string) bool {
	info := make([]byte, infoSize)
	copy(info[:nameSize-1], table)
	if !getsockopt(fd, l.level, soGetInfo, info) {
		return false
	}
	size := binary.NativeEndian.Uint32(info[infoSize-4:])
	all := make([]byte, headSize+int(size))
	copy(all[:nameSize-1], table)
	binary.NativeEndian.PutUint32(all[nameSize:], size)
	// A table that changed its size since gives an error here, and "cannot tell" is the right answer then.
	if !getsockopt(fd, l.level, soGetEntries, all) {
		return false
	}
	// Nothing the kernel says is believed without a look at the bounds: a 32-bit program may get another layout.
	for entries := all[headSize:]; len(entries) > 0; {
		if len(entries) < l.counters+countersSize {
			return false
		}
		next := int(binary.NativeEndian.Uint16(entries[l.next:]))
		if next < l.counters+countersSize || next > len(entries) {
			return false
		}
		// Packets must not look like a change. What matches such as limit count is not handed out by the kernel.
		clear(entries[l.counters : l.counters+countersSize])
		h.Write(entries[:next])
		entries = entries[next:]
	}
	return true
}

// getsockopt fills all of buf, whose beginning the kernel reads.
func getsockopt(fd, level, option int, buf []byte) bool {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	return errno == 0 && int(size) == len(buf)
}
