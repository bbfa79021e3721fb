//go:build linux

package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/coreos/go-iptables/iptables"
	"github.com/google/nftables"
)

// tools are the variants that are installed, by the name that their commands begin with after "iptables"/"ip6tables".
type tools struct {
	suffix   map[variant]string // "-nft", "-legacy" or ""
	standard variant            // that of plain "iptables"; "" where there is none
}

// findTools looks for the programs. It starts one: what plain iptables is, only it can tell. Its error means that this
// could not be found out.
func findTools(ctx context.Context) (tools, error) {
	t := tools{suffix: map[variant]string{}}
	if _, err := exec.LookPath("iptables-restore"); err == nil {
		// Before 1.8 there was only one variant, and the version says nothing about it.
		out, err := run(ctx, nil, "iptables", "--version")
		if shortage(err) {
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
	// The name with a suffix is preferred: an administrator may turn plain iptables from one to the other at any time.
	for v, suffix := range map[variant]string{variantNFT: "-nft", variantLegacy: "-legacy"} {
		if _, err := exec.LookPath("iptables" + suffix + "-restore"); err == nil {
			t.suffix[v] = suffix
		}
	}
	return t, nil
}

// choose returns the variant that this host uses: the one that kubelet has left its mark in (the rule that the
// Kubernetes project gives for containers, whose own default says nothing about the host), else plain iptables.
func (t tools) choose(ctx context.Context) (variant, error) {
	if len(t.suffix) == 0 {
		return "", errors.New("find iptables: no iptables-restore in PATH: install the package iptables, or set EnableNFTables")
	}
	_, nft := t.suffix[variantNFT]
	legacy, old := t.suffix[variantLegacy]
	var unread error
	marked := func(found bool, err error) bool {
		unread = errors.Join(unread, err)
		return found
	}
	switch {
	case nft && (marked(kubeletChain(nftables.TableFamilyIPv4)) || marked(kubeletChain(nftables.TableFamilyIPv6))):
		return variantNFT, nil
	case old && (marked(kubeletLegacy(ctx, "iptables", legacy)) || marked(kubeletLegacy(ctx, "ip6tables", legacy))):
		return variantLegacy, unread
	case unread != nil:
		return "", fmt.Errorf("look for kubelet's chains: %w", unread)
	case t.standard != "":
		return t.standard, nil
	case nft:
		return variantNFT, nil
	}
	return variantLegacy, nil
}

// randomFully tells whether the programs of v are new enough for --random-fully; whether the kernel is, it tells when
// it is asked to take it.
func (t tools) randomFully(ctx context.Context, v variant) (bool, error) {
	name := "iptables" + t.suffix[v]
	for range 2 { // the library does not say whether it could start the program
		if _, err := run(ctx, nil, name, "--version"); shortage(err) {
			return false, fmt.Errorf("find out the version of iptables: %w", err)
		}
		if ipt, err := iptables.New(iptables.Path(name)); err == nil {
			return ipt.HasRandomFully(), nil
		}
	}
	return false, nil
}

func kubeletChain(family nftables.TableFamily) (bool, error) {
	hint, err := hasChain(family, "mangle", "KUBE-IPTABLES-HINT")
	if hint || err != nil {
		return hint, err
	}
	return hasChain(family, "mangle", "KUBE-KUBELET-CANARY")
}

// kubeletLegacy reads all tables: asking for mangle alone would make it.
func kubeletLegacy(ctx context.Context, command, suffix string) (bool, error) {
	p := &iptablesPlace{command: command, suffix: suffix, variant: variantLegacy}
	if there, err := p.loaded("mangle"); !there || err != nil {
		return false, err
	}
	s, err := p.read(ctx, nil)
	if shortage(err) {
		return false, err
	}
	return err == nil && s.kubelet, nil
}
