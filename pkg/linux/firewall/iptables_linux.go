package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"flannel/pkg/firewall"
)

// errRefused means that the kernel or iptables rejected our rules: syncPlace then tries them without what is not essential.
var errRefused = errors.New("rules refused")

// errChanging means that another program changed a chain while it was read: read tries again.
var errChanging = errors.New("another program is changing the rules")

// exitLocked is the exit code of iptables-legacy when another process holds its lock for too long.
const exitLocked = 4

// variant says where iptables keeps its rules. The rules of the two variants are separate: one does not list the
// other's, but a packet passes both.
type variant string

const (
	variantNFT    variant = "nf_tables"
	variantLegacy variant = "legacy"
)

// iptablesPlace holds our rules of one address family and table in one variant of iptables. Each table is a place of its
// own, so that one whose rules are refused keeps no other table from being written.
type iptablesPlace struct {
	owner   instance
	command string // "iptables" or "ip6tables"
	suffix  string // of the command's name: "-nft", "-legacy" or ""
	variant variant
	table   string // "nat" or "filter"
	// translations are our chains, by name, as last read or written: as in the kernel and as arguments of iptables.
	translations map[string]translation
}

// newIPTablesPlace returns a place of which nothing was read yet.
func newIPTablesPlace(owner instance, command, suffix string, v variant, table string) *iptablesPlace {
	return &iptablesPlace{owner: owner, command: command, suffix: suffix, variant: v, table: table, translations: map[string]translation{}}
}

func (p *iptablesPlace) String() string {
	return p.command + " (" + string(p.variant) + "): " + p.table
}

// chains returns our chains in the table.
func (p *iptablesPlace) chains() []firewall.Chain { return inTable(p.owner.chains(), p.table) }

// inTable returns those of the chains that are in a table. It changes the slice that it gets.
func inTable(chains []firewall.Chain, table string) []firewall.Chain {
	return slices.DeleteFunc(chains, func(c firewall.Chain) bool { return c.Table != table })
}

// digest implements place. It asks the kernel directly, which is far cheaper than starting iptables on a host with many
// rules. In the nft variant it covers our chains and the jumps to them, but not the rules of others around the jumps: a
// jump is not moved because of these, except right after its insertion (sync). In the legacy variant it covers the whole
// table. 0: unknown.
func (p *iptablesPlace) digest() uint64 {
	if p.variant == variantLegacy {
		return p.legacyDigest()
	}
	h := fnv.New64a()
	for _, own := range p.chains() {
		for _, chain := range []string{own.Parent, own.Name} {
			rules, err := readRules(p.family(), own.Table, chain)
			if err != nil && !absent(err) { // absent: there is no such chain or table, or no nf_tables
				return 0
			}
			if chain == own.Parent {
				rules = slices.DeleteFunc(rules, func(r kernelRule) bool { return r.jump != own.Name })
			}
			fmt.Fprintln(h, chain, rules, err) // err: a chain that is absent is not like an empty one
		}
	}
	return h.Sum64()
}

// legacyDigest is digest in the legacy variant. 0: unknown.
func (p *iptablesPlace) legacyDigest() uint64 {
	there, err := p.tableLoaded(p.table)
	if err != nil {
		return 0
	}
	var tables []string // none: the digest is the same for as long as the table does not exist
	if there {
		tables = []string{p.table}
	}
	if p.command == "iptables" {
		return layout4.digest(tables)
	}
	return layout6.digest(tables)
}

// tableLoaded reports whether the legacy table exists. Asking iptables-legacy for it by name would create it. Without the
// file of names, the kernel has no legacy tables.
func (p *iptablesPlace) tableLoaded(table string) (bool, error) {
	file := "/proc/thread-self/net/ip_tables_names"
	if p.command == "ip6tables" {
		file = "/proc/thread-self/net/ip6_tables_names"
	}
	names, err := os.ReadFile(file)
	if isTransient(err) {
		return false, fmt.Errorf("list tables: %w", err)
	}
	return err == nil && slices.Contains(strings.Fields(string(names)), table), nil
}

// mayHoldRules reports whether the place can hold anything of ours, without starting a program. On a host that uses one
// variant, the programs of the other are therefore never started; they may not even work there.
func (p *iptablesPlace) mayHoldRules() (there bool, err error) {
	for _, c := range p.chains() {
		if there, err = p.hasChain(c.Table, c.Name); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// list implements place.
func (p *iptablesPlace) list(ctx context.Context) ([]string, error) {
	if there, err := p.mayHoldRules(); !there || err != nil {
		return nil, err
	}
	s, err := p.read(ctx, nil) // nil: as before a removal, with all jumps to our chains
	if err != nil {
		return nil, err
	}
	var all []string
	for _, own := range p.chains() {
		c := s.chain(own)
		for _, jump := range jumps(c.parent) {
			all = append(all, fmt.Sprintf("%s: -A %s %s", p, own.Parent, jump.text))
		}
		for _, f := range c.foreignJumps {
			all = append(all, fmt.Sprintf("%s: -A %s %s", p, f.chain, f.text))
		}
		if c.exists {
			rules, err := p.chainRules(own.Table, own.Name)
			if err != nil {
				return nil, err
			}
			all = append(all, fmt.Sprintf("%s: chain %s, %d rules", p, own.Name, len(rules)))
		}
	}
	return all, nil
}

// sync implements place. It reads, compares and writes, up to three times. It retries after a refused transaction, since
// another program may have changed a jump that the script deletes by its text. It also reads again after inserting a jump
// at a position, to see whether the position was still right.
func (p *iptablesPlace) sync(ctx context.Context, want []firewall.Chain) (changed int, err error) {
	if len(want) == 0 {
		if there, err := p.mayHoldRules(); !there || err != nil {
			return 0, err
		}
	}
	var numbered map[string][]string // of the change written last: see change
	for range 3 {
		have, readErr := p.read(ctx, want)
		if readErr != nil {
			return changed, readErr
		}
		for chain, behind := range numbered { // was the position still right? If not, planChange moves the jump
			h := have.entry(chain)
			h.misplaced = misplaced(h.parent, behind)
		}
		c := planChange(have, want)
		if c.chains == 0 { // all is as wanted, perhaps by the write before
			return changed, nil
		}
		err = p.write(ctx, c)
		if err == nil {
			p.recordWritten(have, want)
			changed = max(changed, c.chains)
			if numbered = c.numbered; len(numbered) == 0 {
				return changed, nil
			}
			continue // to see whether the jump is where it was to be
		}
		if p.isInterrupted(err) || ctx.Err() != nil || isTransient(err) { // says nothing about the rules: not errRefused
			return changed, fmt.Errorf("write rules: %w", err)
		}
		err = fmt.Errorf("write rules: %w: %w: %s", errRefused, err, extensionAdvice(p.variant, err.Error()))
	}
	return changed, err // nil if only the position was wrong each time: the jump stays where it is
}

// isInterrupted reports whether err means that a program of iptables was killed, or has waited in vain for the lock of the
// legacy variant. Such an error says nothing about rules. One that crashes is not interrupted: it would crash again.
func (p *iptablesPlace) isInterrupted(err error) bool {
	exit, failed := errors.AsType[*exec.ExitError](err)
	if !failed {
		return false
	}
	status, _ := exit.Sys().(syscall.WaitStatus) // its type on Linux
	killed := status.Signaled() && (status.Signal() == unix.SIGKILL || status.Signal() == unix.SIGTERM)
	return killed || p.variant == variantLegacy && exit.ExitCode() == exitLocked
}

// write executes a change: the deletions by handle of jumps to chains that the script deletes (before), the script as one
// transaction, and those of jumps that the script has replaced (after).
func (p *iptablesPlace) write(ctx context.Context, c change) error {
	if err := p.deleteRules(c.before); err != nil {
		return err
	}
	// Without --noflush, iptables-restore would delete the rules of all programs. --wait is for the lock of the legacy
	// variant, in seconds; the nft variant accepts and ignores it.
	if _, err := run(ctx, []byte(c.script), p.command+p.suffix+"-restore", "--noflush", "--wait=5"); err != nil {
		return err
	}
	return p.deleteRules(c.after)
}

// isTransient reports whether err means a lack of descriptors, memory or processes, or a change during the call. Such
// an error says nothing about the rules that exist, nor about those to be written.
func isTransient(err error) bool {
	return slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN, unix.EINTR, os.ErrDeadlineExceeded},
		func(e error) bool { return errors.Is(err, e) })
}

// run starts a program and waits for it, or kills it when ctx ends. A transaction of a killed iptables-restore is in
// the kernel as a whole or not at all. The error contains the first line that the program wrote to stderr.
func run(ctx context.Context, input []byte, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = bytes.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%w: install the package iptables", err)
	}
	if err != nil {
		line, _, _ := bytes.Cut(bytes.TrimSpace(stderr.Bytes()), []byte("\n"))
		return nil, fmt.Errorf("%s: %w: %s", name, err, line)
	}
	return out, nil
}
