package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/pkg/doctor"
	"flannel/pkg/doctor/ruleset"
	"flannel/pkg/linux/rtnetlink"
	"flannel/pkg/windows/node"
)

// documents returns nil: they exist only on Windows.
func documents(context.Context, time.Duration) map[string][]byte { return nil }

// system returns the probes for Linux, which write into s. run adds the common ones. Each
// runs on a goroutine of its own.
func system(o Options, s *doctor.Snapshot) []probe {
	l := &s.Linux
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		l.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	return []probe{
		factProbe(&s.Processes, withoutContext(func() ([]doctor.Process, error) { return daemonsOfNode(o) })),
		factProbe(&l.Sysctls, withoutContext(func() (doctor.Sysctls, error) { return sysctls("/proc/sys") })),
		factProbe(&l.Devices, withoutContext(devices)),
		factProbe(&l.IPTables, func(ctx context.Context) ([]doctor.Listing, error) { return iptables(ctx, "iptables") }),
		factProbe(&l.IP6Tables, func(ctx context.Context) ([]doctor.Listing, error) { return iptables(ctx, "ip6tables") }),
		factProbe(&l.NFTables, nftables),
		factProbe(&l.Managers, withoutContext(managers)),
		reservations(o, l),
		factProbe(&l.Paths, func(ctx context.Context) ([]doctor.Path, error) { return paths(ctx, o) }),
	}
}

// reservations reads what host-local has reserved. In a container, its directory may not
// be mounted.
func reservations(o Options, l *doctor.Linux) probe {
	return probe{
		read: func(context.Context) func() {
			addrs, err := node.AllocatedAddresses(o.DataDir)
			f := known(addrs, err)
			if errors.Is(err, fs.ErrNotExist) {
				f = doctor.Absent[[]netip.Addr](fmt.Sprintf("%s does not exist here: host-local is not used, or its directory is not mounted", o.DataDir))
			}
			return func() { l.Reserved = f }
		},
		timedOut: func(why string) { l.Reserved = doctor.Unknown[[]netip.Addr](why) },
	}
}

// devices lists the network devices, except for loopback.
func devices() ([]doctor.Device, error) {
	links, err := rtnetlink.Whole(netlink.LinkList) // repeats an interrupted list
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var list []doctor.Device
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagLoopback != 0 {
			continue
		}
		d := doctor.Device{Name: a.Name, Index: a.Index, Type: l.Type(), MTU: a.MTU, Master: a.MasterIndex,
			Driver: driver(a.Name)}
		if v, ok := l.(*netlink.Vxlan); ok {
			d.VNI, d.Port, d.Parent = v.VxlanId, v.Port, v.VtepDevIndex
			d.OuterIsIPv6 = v.SrcAddr != nil && v.SrcAddr.To4() == nil
			d.TxChecksum = txChecksum(a.Name)
		}
		list = append(list, d)
	}
	return list, nil
}

// driver returns the name of a device's driver; "": it is virtual.
func driver(device string) string {
	target, err := os.Readlink("/sys/class/net/" + device + "/device/driver")
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// txChecksum reads whether checksum offload is on (ETHTOOL_GTXCSUM in
// linux/ethtool.h).
func txChecksum(device string) doctor.Fact[bool] {
	value, err := ethtool(device, unix.ETHTOOL_GTXCSUM, 0)
	if err != nil {
		return doctor.Unknown[bool](fmt.Sprintf("read the offloads of %s: %v", device, err))
	}
	return doctor.Known(value != 0)
}

// ethtool runs a command (ETHTOOL_… in linux/ethtool.h) with one value, in the network
// namespace of the calling thread, and returns the value afterwards.
func ethtool(device string, command, value uint32) (uint32, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	// struct ethtool_value and struct ifreq, with a pointer in its union. The padding
	// makes it at least as long as the kernel's.
	data := struct{ command, value uint32 }{command, value}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&data)}
	if len(device) >= len(request.name) {
		return 0, unix.EINVAL
	}
	copy(request.name[:], device)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return 0, errno
	}
	return data.value, nil
}

// output returns the output of a program. Its error has the first 200 characters of what
// the program wrote to stderr.
func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second // a child of the program may keep its output open
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w %.200s", name, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out.Bytes(), nil
}

// iptables reads the rules of all tables by iptables-save, which creates no table
// and loads no module. It reads those of both variants, legacy and nft, if their
// programs have names of their own; otherwise those of the default variant.
// If no program lists those of the variant legacy, and the kernel has legacy tables, an error
// comes with the rest. A program of the variant nft that fails at a rule of somebody else,
// which iptables cannot print, is left out: its rules are in the listing of nftables, too.
func iptables(ctx context.Context, family string) ([]doctor.Listing, error) {
	programs := map[string]string{family + "-nft-save": ruleset.VariantNFT, family + "-legacy-save": ruleset.VariantLegacy}
	for name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			delete(programs, name)
		}
	}
	name := family + "-save"
	if _, err := exec.LookPath(name); err == nil && len(programs) == 0 {
		programs[name] = ruleset.VariantLegacy
		// Before 1.8 there was only the legacy variant, and the version does not mention it.
		version, err := output(ctx, name, "--version")
		if err != nil {
			return nil, err
		}
		if bytes.Contains(version, []byte(ruleset.VariantNFT)) {
			programs[name] = ruleset.VariantNFT
		}
	}
	var listings []doctor.Listing
	legacy := false // a program has listed the variant legacy
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		out, err := output(ctx, name)
		if _, exited := errors.AsType[*exec.ExitError](err); exited && ctx.Err() == nil && programs[name] == ruleset.VariantNFT {
			continue // see above
		}
		if err != nil {
			return listings, err
		}
		legacy = legacy || programs[name] == ruleset.VariantLegacy
		listings = append(listings, doctor.Listing{Variant: programs[name], Lines: usefulLines(out)})
	}
	if !legacy {
		return listings, noLegacyRules(family, "/proc/net/"+legacyTables[family])
	}
	return listings, nil
}

// nftables reads the rules of all tables.
func nftables(ctx context.Context) (string, error) {
	out, err := output(ctx, "nft", "-n", "-j", "list", "ruleset")
	return string(out), err
}

// legacyTables are the files below /proc/net that name the loaded tables, by family as for
// iptables.
var legacyTables = map[string]string{"iptables": "ip_tables_names", "ip6tables": "ip6_tables_names"}

// noLegacyRules returns an error if the kernel may have rules of iptables-legacy. A table
// may be empty, as after iptables-legacy -L. path is that of the family's file in
// legacyTables, which only root may read.
func noLegacyRules(family, path string) error {
	tables, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // the kernel has not loaded the module
		return nil
	case err != nil:
		return fmt.Errorf("look for rules of iptables-legacy: %w", err)
	}
	names := strings.Fields(string(tables))
	if len(names) == 0 {
		return nil
	}
	module := strings.TrimSuffix(family, "s") + "_" + names[0]
	return fmt.Errorf("the kernel has tables of iptables-legacy (%s), and %s-legacy-save, which lists their rules, is not installed: "+
		"install iptables-legacy, or, if nobody uses a table, unload its module (modprobe -r %s)", strings.Join(names, ", "), family, module)
}

// usefulLines returns the lines of tables, chains and rules in the output of
// iptables-save, without those of kube-proxy's chains in the table nat, which may
// be many thousands and translate addresses of Services only.
func usefulLines(out []byte) (lines []string) {
	inNAT := false
	for raw := range bytes.Lines(out) {
		line := strings.TrimSpace(string(raw))
		if strings.HasPrefix(line, "*") {
			inNAT = line == "*nat"
		}
		isUseful := strings.HasPrefix(line, "*") || strings.HasPrefix(line, ":") || strings.HasPrefix(line, "-A ")
		ofService := inNAT && (strings.HasPrefix(line, ":KUBE-") || strings.HasPrefix(line, "-A KUBE-"))
		if isUseful && !ofService {
			lines = append(lines, line)
		}
	}
	return lines
}

// KubeProxyDSR reports nothing: only Windows has direct server return.
func KubeProxyDSR() (dsr, known bool) { return false, false }
