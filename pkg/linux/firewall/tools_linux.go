package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/coreos/go-iptables/iptables"
)

// tools describes the variants of iptables that are installed. Firewall.planPlaces looks for them when the configuration
// has changed, and again while that fails; so does each Cleanup.
type tools struct {
	suffix   map[variant]string // what follows "iptables" or "ip6tables" in the commands' names: "-nft", "-legacy" or ""
	standard variant            // of plain "iptables"; "" if it is not installed
}

// suffixes are in the names of the programs of one variant. Plain iptables is of either.
var suffixes = map[variant]string{variantNFT: "-nft", variantLegacy: "-legacy"}

// findTools looks for the programs in PATH. It starts "iptables --version" to learn the variant of plain iptables, and
// returns an error only if that could not be started for want of resources: asked again, the answer may be another. A
// plain iptables that fails otherwise counts as not installed.
func findTools(ctx context.Context) (tools, error) {
	t := tools{suffix: map[variant]string{}}
	if _, err := exec.LookPath("iptables-restore"); err == nil { // the program that writes
		// Before 1.8 there was only the legacy variant, and the version does not mention it.
		out, err := run(ctx, nil, "iptables", "--version")
		if isTransient(err) {
			return t, fmt.Errorf("find out what iptables is: %w", err)
		}
		if err == nil {
			t.standard = variantLegacy
			if bytes.Contains(out, []byte("nf_tables")) {
				t.standard = variantNFT
			}
			t.suffix[t.standard] = ""
		}
	}
	// Names with a suffix are preferred: an administrator may switch plain iptables to the other variant at any time.
	for v, suffix := range suffixes {
		if _, err := exec.LookPath("iptables" + suffix + "-restore"); err == nil {
			t.suffix[v] = suffix
		}
	}
	return t, nil
}

// kubeletChains are chains in the table mangle by which kubelet marks the variant that it uses.
var kubeletChains = []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}

// chooseVariant returns the variant that the host uses: the one that holds kubelet's chains, else that of plain iptables.
// This is the rule that the Kubernetes project gives for containers, whose own iptables says nothing about the host. marked
// says that there are such chains. With an error, which may come beside a variant, the caller tries again later: something
// could not be read, and the other variant may have the chains.
func (t tools) chooseVariant() (v variant, marked bool, err error) {
	if len(t.suffix) == 0 {
		return "", false, errors.New("find iptables: no iptables-restore in PATH: install the package iptables, or set EnableNFTables")
	}
	_, hasNFT := t.suffix[variantNFT]
	_, hasLegacy := t.suffix[variantLegacy]
	var readErr error
	has := func(found bool, err error) bool { // keeps the error of a look for kubelet's chains
		readErr = errors.Join(readErr, err)
		return found
	}
	switch {
	case hasNFT && (has(variantNFT.hasKubeletChain("iptables")) || has(variantNFT.hasKubeletChain("ip6tables"))):
		return variantNFT, true, nil
	case hasLegacy && (has(variantLegacy.hasKubeletChain("iptables")) || has(variantLegacy.hasKubeletChain("ip6tables"))):
		return variantLegacy, true, readErr
	case readErr != nil:
		return "", false, fmt.Errorf("look for kubelet's chains: %w", readErr)
	case t.standard != "":
		return t.standard, false, nil
	case hasNFT:
		return variantNFT, false, nil
	}
	return variantLegacy, false, nil
}

// supportsRandomFully reports whether the programs of v support --random-fully; else rules are written without. (If only the
// kernel is too old, it refuses the rules, and syncPlace writes them without.) Programs whose version cannot be read in two
// tries count as too old.
func (t tools) supportsRandomFully(ctx context.Context, v variant) (bool, error) {
	name := "iptables" + t.suffix[v]
	// Both run and the library start the program. Only the error of run shows a want of resources. If the library alone
	// fails, the second round calls run again.
	for range 2 {
		if _, err := run(ctx, nil, name, "--version"); isTransient(err) {
			return false, fmt.Errorf("find out the version of iptables: %w", err)
		}
		if ipt, err := iptables.New(iptables.Path(name)); err == nil {
			return ipt.HasRandomFully(), nil
		}
	}
	return false, nil
}

// hasKubeletChain reports whether a variant holds one of kubelet's chains. command ("iptables" or "ip6tables") stands for
// the address family. No program is started, and no module of the kernel is loaded: hasChain only asks for tables that exist.
func (v variant) hasKubeletChain(command string) (bool, error) {
	p := &iptablesPlace{command: command, variant: v}
	for _, name := range kubeletChains {
		if found, err := p.hasChain("mangle", name); found || err != nil {
			return found, err
		}
	}
	return false, nil
}
