package firewall

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file asks the kernel for a table of the legacy variant of iptables, for the digest by which firewall_linux.go
// finds changes, and for legacyread_linux.go.
//
// The legacy variant has neither notifications nor a generation number, and iptables-legacy-save is expensive on a host
// with many rules. But getsockopt returns a table as the kernel stores it, and a hash of that shows any change.

// layout holds byte offsets within struct ipt_entry or ip6t_entry (linux/netfilter_ipv4/ip_tables.h and
// netfilter_ipv6/ip6_tables.h): one rule, with its matches and target behind it.
type layout struct {
	domain, level int  // of the socket that is asked: address family and level of its options
	flags         int  // of the rule: one byte
	gotoFlag      byte // in flags: the rule goes to a chain instead of jumping to it
	next          int  // the length of the entry; two bytes before it is the offset of the target
	counters      int  // the last field, of packets and bytes
	size          int  // of the entry without matches and target
	head          int  // size of struct ipt_get_entries before the entries: name, size, padding
}

var (
	layout4 = layout{domain: unix.AF_INET, level: unix.SOL_IP, flags: 82, gotoFlag: 2, next: 90, counters: 96, size: 112,
		head: 36 + counterPadding}
	layout6 = layout{domain: unix.AF_INET6, level: unix.SOL_IPV6, flags: 131, gotoFlag: 4, next: 142, counters: 148 + counterPadding,
		size: 164 + counterPadding, head: 36 + counterPadding}
)

// counterPadding is the space before a 64-bit counter that follows 36 or 148 bytes. The 32-bit x86 is the only
// architecture of Linux that we build for on which such a counter is aligned to four bytes.
var counterPadding = func() int {
	if runtime.GOARCH == "386" {
		return 0
	}
	return 4
}()

const (
	soGetInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	soGetEntries = 65 // IPT_SO_GET_ENTRIES, IP6T_SO_GET_ENTRIES
	nameSize     = 32 // XT_TABLE_MAXNAMELEN
	infoSize     = 84 // struct ipt_getinfo; its last field is the size of all entries
)

// digest returns a hash of legacy tables without their packet counters; 0: unknown. The tables must exist, because
// asking for one creates it (iptablesPlace.tableLoaded). 20,000 rules take about 10 ms.
func (l layout) digest(tables []string) uint64 {
	h := fnv.New64a()
	for _, table := range tables {
		_, entries, err := l.read(table)
		if err != nil {
			return 0
		}
		h.Write([]byte(table))
		h.Write(entries)
	}
	return h.Sum64()
}

// read returns struct ipt_getinfo and the entries of a table, with all counters 0, because packets must not look like a
// change. The state of matches such as limit is not in the entries. If the size of the table changes between the two
// requests, the error is EAGAIN, after which legacyTable tries again.
func (l layout) read(table string) (info, entries []byte, err error) {
	fd, err := unix.Socket(l.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, nil, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	info = make([]byte, infoSize)
	copy(info[:nameSize-1], table)
	if err := getsockopt(fd, l.level, soGetInfo, info); err != nil {
		return nil, nil, fmt.Errorf("ask for its size: %w", err)
	}
	size := binary.NativeEndian.Uint32(info[infoSize-4:])
	all := make([]byte, l.head+int(size))
	copy(all[:nameSize-1], table)
	binary.NativeEndian.PutUint32(all[nameSize:], size)
	// This fails if the size of the table changed since the first call.
	if err := getsockopt(fd, l.level, soGetEntries, all); err != nil {
		return nil, nil, fmt.Errorf("ask for its rules: %w", err)
	}
	entries = all[l.head:]
	for rest := entries; len(rest) > 0; {
		entry, ok := l.entry(rest)
		if !ok {
			return nil, nil, errLayout
		}
		clear(entry[l.counters:l.size])
		rest = rest[len(entry):]
	}
	return info, entries, nil
}

// getsockopt lets the kernel fill all of buf. The beginning of buf is the request.
func getsockopt(fd, level, option int, buf []byte) error {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	if int(size) != len(buf) {
		return fmt.Errorf("%w: %d bytes, want %d", errLayout, size, len(buf))
	}
	return nil
}
