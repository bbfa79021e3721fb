package probe

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"flannel/pkg/windows/service"
)

const (
	listWithin = 10 * time.Second // bounds each command
	maxListing = 8 << 20          // bounds each file, in bytes
	maxPorts   = 128              // of virtual switches, whose rules are listed
)

// listings returns the commands whose outputs a bundle contains (flanneld doctor
// --bundle), by the name of the file for the output. system is runtime.GOOS. None of
// them changes anything.
func listings(system string) map[string][]string {
	if system == "windows" {
		return map[string][]string{"version.txt": {"cmd", "/c", "ver"}, "ipconfig.txt": {"ipconfig", "/all"}, "routes.txt": {"route", "print"},
			"services.txt": {"sc", "query", "hns"}, "containerd.txt": {"sc", "qc", "containerd"}, "processes.txt": {"tasklist"},
			"events.txt":     {"wevtutil", "qe", "Application", "/q:*[System[Provider[@Name='" + service.Name + "']]]", "/c:500", "/rd:true", "/f:text"},
			"hns-events.txt": {"wevtutil", "qe", "Microsoft-Windows-Host-Network-Service-Admin", "/c:200", "/rd:true", "/f:text"},
			"hnsdiag.txt":    {"hnsdiag", "list", "all", "-d"},
		}
	}
	return map[string][]string{
		"links.txt": {"ip", "-d", "-s", "link"}, "addresses.txt": {"ip", "address"}, "rules.txt": {"ip", "rule"},
		"routes.txt": {"ip", "route", "show", "table", "all"}, "routes6.txt": {"ip", "-6", "route", "show", "table", "all"},
		"nexthops.txt": {"ip", "nexthop"}, "neighbours.txt": {"ip", "neigh"}, "fdb.txt": {"bridge", "fdb"},
		"iptables.txt": {"iptables-save", "-c"}, "ip6tables.txt": {"ip6tables-save", "-c"}, "nft.txt": {"nft", "list", "ruleset"},
		"journal.txt": {"journalctl", "-u", "flanneld", "--no-pager", "-n", "2000"},
	}
}

// lister runs commands of the system, for WriteBundle.
type lister struct {
	system  string              // runtime.GOOS
	program func(string) string // path of a program
}

// runAll runs the listings concurrently and adds their outputs to files, with the
// error of those that fail.
func (l lister) runAll(ctx context.Context, files map[string][]byte) {
	var mu sync.Mutex
	var running sync.WaitGroup
	run := func(name string, list func(context.Context) []byte) {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, listWithin)
			defer cancel()
			out := list(ctx)
			mu.Lock()
			defer mu.Unlock()
			files["listings/"+name] = out
		})
	}
	for name, command := range listings(l.system) {
		run(name, func(ctx context.Context) []byte { return l.run(ctx, maxListing, command...) })
	}
	if l.system == "windows" {
		run("vfp.txt", l.ports)
	}
	running.Wait()
}

// run returns the output of a command, at most limit bytes of it, and its error as a line
// of text. A command that does not exist is such an error.
func (l lister) run(ctx context.Context, limit int, command ...string) []byte {
	cmd := exec.CommandContext(ctx, l.program(command[0]), command[1:]...)
	cmd.WaitDelay = time.Second // a child of the command may keep its output open
	out := &bounded{limit: limit}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	text := out.text()
	if err != nil && !out.truncated {
		text = fmt.Appendf(text, "%s: %v\n", strings.Join(command, " "), err)
	}
	return text
}

// portName matches the name of a port of a virtual switch.
var portName = regexp.MustCompile(`(?m)^\s*Port name\s*:\s*([0-9A-Fa-f-]{36})\s*$`)

// ports returns the ports of all virtual switches, with the layers and rules by which
// the switch (VFP) handles packets of each.
func (l lister) ports(ctx context.Context) []byte {
	all := l.run(ctx, maxListing, "vfpctrl", "/list-vmswitch-port")
	for i, found := range portName.FindAllSubmatch(slices.Clone(all), -1) {
		switch rest := maxListing - len(all); {
		case ctx.Err() != nil || i == maxPorts || rest <= 0:
			return fmt.Appendf(all, "\nthe other ports are left out after %d\n", i)
		default:
			port := string(found[1])
			all = fmt.Appendf(all, "\n\nport %s:\n", port)
			all = append(all, l.run(ctx, rest, "vfpctrl", "/port", port, "/list-rule")...)
		}
	}
	return all
}

// bounded is a writer that keeps the first bytes. It fails after them, which ends the
// command that writes.
type bounded struct {
	limit     int // in bytes
	kept      bytes.Buffer
	truncated bool // more was written than is kept
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	keep := min(len(p), b.limit-b.kept.Len())
	b.kept.Write(p[:keep])
	if keep < len(p) {
		b.truncated = true
		return keep, io.ErrShortWrite
	}
	return keep, nil
}

// text returns whole lines: in a part of one, a secret might not be recognized.
func (b *bounded) text() []byte {
	text := b.kept.Bytes()
	if b.truncated {
		text = text[:bytes.LastIndexByte(text, '\n')+1]
		text = append(text, "truncated\n"...)
	}
	return text
}
