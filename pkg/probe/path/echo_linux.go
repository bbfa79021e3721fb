// This file sends echo requests for Test: several at once, of given sizes, each
// recognized by its token and, in the field for the sequence number, the index of its
// size.

package path

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// attempts is how often a packet is sent until it is answered.
const attempts = 3

// pollMillis is how long a poll waits for packets, in milliseconds, before the caller
// looks whether its time is over.
const pollMillis = 20

// rawSocket opens a socket for packets of a protocol to and from dst, which the kernel
// sends in any size that the device carries, and does not fragment.
func rawSocket(dst netip.Addr, protocol int) (int, error) {
	family, level, option, never := unix.AF_INET, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
	if dst.Is6() {
		family, level, option, never = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return -1, fmt.Errorf("open a raw socket: %w", err)
	}
	if err = unix.SetsockoptInt(fd, level, option, never); err == nil {
		err = unix.Connect(fd, socketAddress(netip.AddrPortFrom(dst, 0)))
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("connect to %s: %w", dst, err), unix.Close(fd))
	}
	return fd, nil
}

// socketAddress returns an address in the form of system calls.
func socketAddress(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is6() {
		return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

// echoes sends an echo request for each size of whole packets, in bytes, up to three times
// within the time. It returns the sizes that were answered, and the last error of the
// kernel, if any: a packet can be answered although an earlier one could not be sent.
func echoes(dst netip.Addr, t token, within time.Duration, sizes ...int) (answered map[int]bool, err error) {
	fd, err := rawSocket(dst, int(icmpOf(dst)))
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing is buffered
	answered = map[int]bool{}
	start := time.Now()
	for attempt := 1; attempt <= attempts; attempt++ {
		for i, size := range sizes {
			if answered[size] {
				continue
			}
			// Without a source: the kernel computes the checksum that includes it.
			if _, sendErr := unix.Write(fd, echoRequest(netip.Addr{}, dst, i, t, size)); sendErr != nil {
				err = fmt.Errorf("send to %s: %w", dst, sendErr)
			}
		}
		// Each attempt has a third of the time.
		for end := start.Add(within * time.Duration(attempt) / attempts); len(answered) < len(sizes); {
			// What has arrived is read also if this process could not run in time.
			late := time.Now().After(end)
			read(fd, dst, t, sizes, answered)
			if late {
				break
			}
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, pollMillis) // an error only ends the wait
		}
	}
	return answered, err
}

// read reads all replies that have arrived at a socket, and marks their sizes in
// answered.
func read(fd int, dst netip.Addr, t token, sizes []int, answered map[int]bool) {
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
		if err == unix.EAGAIN {
			return
		}
		if err != nil { // an ICMP error about a request, which reading has cleared
			if n, err = unix.Read(fd, buffer); err != nil {
				return
			}
		}
		m := buffer[:n]
		if dst.Is4() {
			m = m[min(n, 20):] // without the IP header, which has no options in a reply; over IPv6 there is none
		}
		if len(m) < icmpHeader+tokenLength || !isReply(m) || !bytes.Equal(m[icmpHeader:icmpHeader+tokenLength], t[:]) {
			continue
		}
		if i := int(binary.BigEndian.Uint16(m[6:])); i < len(sizes) { // the sequence number
			answered[sizes[i]] = true
		}
	}
}

// rungs is how many sizes one round of largest tests, evenly spaced between its bounds.
const rungs = 24

// largest returns the size of the largest packet that is answered: at least passes, and
// less than fails. It takes up to three rounds for usual MTUs, and ends early with done.
func largest(done <-chan struct{}, dst netip.Addr, within time.Duration, passes, fails int) int {
	for fails-passes > 1 {
		select {
		case <-done:
			return passes
		default:
		}
		step := max(1, (fails-passes)/(rungs+1))
		var sizes []int
		for size := passes + step; size < fails; size += step {
			sizes = append(sizes, size)
		}
		answered, _ := echoes(dst, newToken(), within, sizes...) // what cannot be sent is not answered
		for _, size := range sizes {
			switch {
			case answered[size]:
				passes = max(passes, size)
			case size > passes: // not answered, and no larger one so far was
				fails = min(fails, size)
			}
		}
		if fails <= passes { // a small one was lost by chance
			return passes
		}
	}
	return passes
}
