package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/doctor"
	"flannel/pkg/underlay"
)

// Documents are what the machine has as documents rather than as the output of a program: nothing on Linux.
func Documents(context.Context, time.Duration) map[string][]byte { return nil }

func system(o Options) []probe {
	return []probe{
		one(func(s *doctor.Snapshot) *doctor.Fact[underlay.Snapshot] { return &s.Interfaces },
			func(context.Context) (underlay.Snapshot, error) { return underlay.Read(underlay.Options{}) }),
		{
			look: func(context.Context) func(*doctor.Snapshot) {
				release := kernel()
				return func(s *doctor.Snapshot) { s.Linux.Kernel = release }
			},
			late: func(*doctor.Snapshot, string) {},
		},
		one(func(s *doctor.Snapshot) *doctor.Fact[[]doctor.Process] { return &s.Processes },
			func(context.Context) ([]doctor.Process, error) { return daemons(o.Commands) }),
		one(func(s *doctor.Snapshot) *doctor.Fact[doctor.Sysctls] { return &s.Linux.Sysctls },
			func(context.Context) (doctor.Sysctls, error) { return sysctls(), nil }),
		one(func(s *doctor.Snapshot) *doctor.Fact[[]doctor.Device] { return &s.Linux.Devices },
			func(context.Context) ([]doctor.Device, error) { return devices() }),
		one(func(s *doctor.Snapshot) *doctor.Fact[[]doctor.Listing] { return &s.Linux.IPTables },
			func(ctx context.Context) ([]doctor.Listing, error) { return iptables(ctx, "iptables") }),
		one(func(s *doctor.Snapshot) *doctor.Fact[[]doctor.Listing] { return &s.Linux.IP6Tables },
			func(ctx context.Context) ([]doctor.Listing, error) { return iptables(ctx, "ip6tables") }),
		one(func(s *doctor.Snapshot) *doctor.Fact[string] { return &s.Linux.NFTables },
			func(ctx context.Context) (string, error) {
				out, err := output(ctx, "nft", "-n", "list", "ruleset")
				return string(out), err
			}),
		one(func(s *doctor.Snapshot) *doctor.Fact[[]doctor.LinkManager] { return &s.Linux.Managers },
			func(context.Context) ([]doctor.LinkManager, error) { return managers() }),
	}
}

func kernel() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

func sysctls() doctor.Sysctls {
	all := doctor.Sysctls{}
	for _, path := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
		"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
		if raw, err := os.ReadFile("/proc/sys/" + path); err == nil {
			all[path] = strings.TrimSpace(string(raw))
		}
	}
	return all
}

func devices() ([]doctor.Device, error) {
	links, err := netlink.LinkList()
	for range 10 { // pods come and go while the kernel lists
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
		links, err = netlink.LinkList()
	}
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var all []doctor.Device
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagLoopback != 0 {
			continue
		}
		d := doctor.Device{Name: a.Name, Index: a.Index, Type: l.Type(), MTU: a.MTU, Master: a.MasterIndex, Driver: driver(a.Name)}
		if v, is := l.(*netlink.Vxlan); is {
			d.VNI, d.Port, d.Parent = v.VxlanId, v.Port, v.VtepDevIndex
			d.OuterIsIPv6 = v.SrcAddr != nil && v.SrcAddr.To4() == nil
			d.TxChecksum = txChecksum(a.Name)
		}
		all = append(all, d)
	}
	return all, nil
}

func driver(device string) string {
	to, err := os.Readlink("/sys/class/net/" + device + "/device/driver")
	if err != nil {
		return "" // a virtual device has none
	}
	return filepath.Base(to)
}

// txChecksum asks whether the device takes packets without their checksums (linux/ethtool.h: ETHTOOL_GTXCSUM). It does
// so by a socket of its own, in the namespace of the calling thread.
func txChecksum(device string) doctor.Fact[bool] {
	value, err := ethtool(device, unix.ETHTOOL_GTXCSUM, 0)
	if err != nil {
		return doctor.Unknown[bool](fmt.Sprintf("ask %s for its offloads: %v", device, err))
	}
	return doctor.Known(value != 0)
}

func ethtool(device string, command, value uint32) (uint32, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd) //nolint:errcheck // it only asked
	question := struct{ command, value uint32 }{command, value}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&question)}
	if len(device) >= len(request.name) {
		return 0, unix.EINVAL
	}
	copy(request.name[:], device)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return 0, errno
	}
	return question.value, nil
}

// output runs a program that lists something.
func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w %.200s", name, err, bytes.TrimSpace(said.Bytes()))
	}
	return out.Bytes(), nil
}

// iptables reads the filter table by -save, which neither makes a table nor loads a module, of both variants where
// they go by their own names.
func iptables(ctx context.Context, family string) ([]doctor.Listing, error) {
	var variants []string
	for _, v := range []string{family + "-nft", family + "-legacy"} {
		if _, err := exec.LookPath(v + "-save"); err == nil {
			variants = append(variants, v)
		}
	}
	if len(variants) == 0 {
		variants = []string{family}
	}
	var all []doctor.Listing
	for _, v := range variants {
		out, err := output(ctx, v+"-save")
		if err != nil {
			return nil, err
		}
		all = append(all, doctor.Listing{Variant: v, Lines: filterLines(out)})
	}
	return all, nil
}

// filterLines takes the filter table out of iptables-save, without the thousands of rules of kube-proxy's own chains.
func filterLines(out []byte) (lines []string) {
	inside := false
	for raw := range bytes.Lines(out) {
		line := strings.TrimSpace(string(raw))
		if strings.HasPrefix(line, "*") {
			inside = line == "*filter"
			continue
		}
		if inside && (line != "" && line[0] == ':' || strings.HasPrefix(line, "-A ")) &&
			!strings.HasPrefix(line, ":KUBE-") && !strings.HasPrefix(line, "-A KUBE-") {
			lines = append(lines, line)
		}
	}
	return lines
}
