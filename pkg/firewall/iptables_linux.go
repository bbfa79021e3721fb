//go:build linux

package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// errRefused marks that the kernel (or iptables) did not take rules that we made.
var errRefused = errors.New("rules refused")

// errChanging means that another program changed a chain while it was read.
var errChanging = errors.New("another program is changing the rules")

// exitLocked is what iptables ends with when another one holds the lock all the time.
const exitLocked = 4

// variant is where iptables keeps its rules: two worlds in one kernel that do not see each other.
type variant string

const (
	variantNFT    variant = "nf_tables"
	variantLegacy variant = "legacy"
)

// iptablesPlace is one family in one variant.
type iptablesPlace struct {
	command string // "iptables" or "ip6tables"
	suffix  string
	variant variant
	log     *slog.Logger
	written map[string]string // content of our chains in tables that iptables-save cannot read, by chain
}

func (p *iptablesPlace) String() string { return p.command + " (" + string(p.variant) + ")" }

func (p *iptablesPlace) family() nftables.TableFamily {
	if p.command == "iptables" {
		return nftables.TableFamilyIPv4
	}
	return nftables.TableFamilyIPv6
}

// digest asks the kernel directly, which is far cheaper than iptables-save on a host with many rules. The nft variant's
// covers our chains and the jumps to them: the rules of others, before our jumps or behind, are not our concern.
func (p *iptablesPlace) digest() uint64 {
	if p.variant == variantLegacy {
		return p.legacyDigest()
	}
	h := fnv.New64a()
	for _, own := range chains() {
		for _, chain := range []string{own.Parent, own.Name} {
			rules, err := readRules(p.family(), own.Table, chain)
			if err != nil && !absent(err) {
				return 0
			}
			if chain == own.Parent {
				rules = slices.DeleteFunc(rules, func(r readRule) bool { return r.jump != own.Name })
			}
			fmt.Fprintln(h, chain, rules, err)
		}
	}
	return h.Sum64()
}

func (p *iptablesPlace) legacyDigest() uint64 {
	var tables []string
	for _, own := range chains() {
		there, err := p.loaded(own.Table)
		if err != nil {
			return 0
		}
		if there {
			tables = append(tables, own.Table)
		}
	}
	if p.command == "iptables" {
		return layout4.digest(tables)
	}
	return layout6.digest(tables)
}

// loaded tells whether the legacy table exists. Asking iptables-legacy for it by name would make it.
func (p *iptablesPlace) loaded(table string) (bool, error) {
	file := "/proc/thread-self/net/ip_tables_names"
	if p.command == "ip6tables" {
		file = "/proc/thread-self/net/ip6_tables_names"
	}
	names, err := os.ReadFile(file)
	if shortage(err) {
		return false, fmt.Errorf("list tables: %w", err)
	}
	return err == nil && slices.Contains(strings.Fields(string(names)), table), nil
}

// present tells, without starting a program, whether there can be anything of ours. A host that uses one variant only
// is thereby spared from the other's programs, which may not even work there.
func (p *iptablesPlace) present() (there bool, err error) {
	for _, c := range chains() {
		if p.variant == variantLegacy {
			there, err = p.loaded(c.Table)
		} else {
			there, err = hasChain(p.family(), c.Table, c.Name)
		}
		if there || err != nil {
			return there, err
		}
	}
	return false, nil
}

func (p *iptablesPlace) list(ctx context.Context) ([]string, error) {
	if there, err := p.present(); !there || err != nil {
		return nil, err
	}
	s, err := p.read(ctx, nil)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, own := range chains() {
		c := s.chain(own)
		for _, jump := range c.jumps() {
			all = append(all, fmt.Sprintf("%s: %s: -A %s %s", p, own.Table, own.Parent, jump))
		}
		for _, f := range c.foreign {
			all = append(all, fmt.Sprintf("%s: %s: -A %s", p, own.Table, f))
		}
		if c.exists {
			all = append(all, fmt.Sprintf("%s: %s: chain %s, %d rules", p, own.Table, own.Name, len(c.rules)))
		}
	}
	return all, nil
}

// sync reads, compares and writes. Deleting a jump names it by its text, so somebody who changes it in between makes
// the transaction fail as a whole: then it is read again.
func (p *iptablesPlace) sync(ctx context.Context, want []Chain) (changed int, err error) {
	if len(want) == 0 {
		if there, err := p.present(); !there || err != nil {
			return 0, err
		}
	}
	// Without --noflush, iptables-restore would throw away everybody's rules. --wait is for the legacy variant's lock,
	// in seconds; the nft variant takes it and needs none.
	var numbered map[string][]string
	for range 3 {
		have, readErr := p.read(ctx, want)
		if readErr != nil {
			return 0, readErr
		}
		for chain, behind := range numbered {
			h := have.of(chain)
			h.anew = misplaced(h.parent, behind)
		}
		c := restore(have, want)
		if c.chains == 0 {
			return changed, nil
		}
		_, err = run(ctx, []byte(c.script), p.command+p.suffix+"-restore", "--noflush", "--wait=5")
		if err == nil {
			p.remember(have)
			changed = max(changed, c.chains)
			if numbered = c.numbered; len(numbered) == 0 {
				return changed, nil
			}
			continue // to see whether the numbers were still right
		}
		var exit *exec.ExitError
		if locked := p.variant == variantLegacy && errors.As(err, &exit) && exit.ExitCode() == exitLocked; locked || ctx.Err() != nil || shortage(err) {
			return 0, fmt.Errorf("write rules: %w", err)
		}
		err = fmt.Errorf("write rules: %w: %w", errRefused, err)
	}
	return changed, err
}

func (p *iptablesPlace) read(ctx context.Context, want []Chain) (s saved, err error) {
	for range 3 {
		if s, err = p.readOnce(ctx, want); !errors.Is(err, errChanging) {
			break
		}
	}
	return s, err
}

func (p *iptablesPlace) readOnce(ctx context.Context, want []Chain) (saved, error) {
	out, err := run(ctx, nil, p.command+p.suffix+"-save")
	if err != nil {
		return saved{}, fmt.Errorf("read rules: %w", err)
	}
	s := parseSave(out)
	if s.torn {
		return saved{}, fmt.Errorf("read rules: %s%s-save ended within a table", p.command, p.suffix)
	}
	for _, own := range chains() {
		if slices.Contains(s.unreadable, own.Table) {
			s.chains[own.Name], err = p.glimpse(own, want)
		} else if c := s.chains[own.Name]; c != nil && p.variant == variantNFT {
			err = p.confirm(own, c.parent)
		}
		if err != nil {
			return saved{}, err
		}
	}
	return s, nil
}

// shortage reports whether err is for want of descriptors, memory or processes, or came of a change meanwhile. It says
// nothing about what there is, nor about what was to be written.
func shortage(err error) bool {
	return slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN, unix.EINTR, os.ErrDeadlineExceeded},
		func(e error) bool { return errors.Is(err, e) })
}

// run starts a program and waits for it, or kills it when ctx ends: a transaction is then in the kernel as a whole, or
// not at all. Its error holds the first line of what it complained.
func run(ctx context.Context, input []byte, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = bytes.NewReader(input)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%w: install the package iptables", err)
	}
	if err != nil {
		line, _, _ := bytes.Cut(bytes.TrimSpace(complaint.Bytes()), []byte("\n"))
		return nil, fmt.Errorf("%s: %w: %s", name, err, line)
	}
	return out, nil
}
