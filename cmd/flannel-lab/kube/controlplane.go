package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/klog/v2"
)

// controlPlane runs a Kubernetes control plane in one process: etcd, the real
// kube-apiserver, and the real controller that assigns podCIDRs to nodes. It
// listens on one address, keeps all data in one directory, and can be killed at any
// time and started again with the same directory.
func controlPlane() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "kube:", err)
		return 1
	}
	// No graceful shutdown, which would wait a minute for open watches. The store
	// survives this, as it survives SIGKILL.
	return 0
}

// options are the command-line options.
type options struct {
	dir    string
	listen netip.AddrPort
	names  []netip.Addr   // further addresses in the serving certificate, such as that of a Service
	cidrs  []netip.Prefix // cluster networks; if empty, nobody assigns podCIDRs
	masks  []int          // length of a node's podCIDR, for each of cidrs
	audit  bool
	api    []string // further arguments for kube-apiserver
}

// run starts the parts one after the other, each when the one before answers, and then
// waits until the server or ctx ends:
//
//	etcd → kube-apiserver → controller for podCIDRs → kubeconfig, "ready" on stdout
//
// A kubeconfig from an earlier run is removed first, since its existence means that
// the server is ready.
func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return err
	}
	// All paths from here on are relative to the directory, because the path of a
	// socket must be short.
	if err := os.Chdir(o.dir); err != nil {
		return err
	}
	if err := os.Remove(kubeconfigFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	pki, err := loadPKI(append(o.names, o.listen.Addr()))
	if err != nil {
		return err
	}
	store, err := startEtcd(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	klog.OsExit = startAgain // what klog.Fatal calls
	// The one result of kube-apiserver; with room, so that its goroutine can end when nobody receives.
	ended := make(chan error, 1)
	if err := startAPIServer(ctx, o, ended); err != nil {
		return err
	}
	config := pki.restConfig(o.listen)
	if err := waitReady(ctx, config, ended); err != nil {
		return err
	}
	if len(o.cidrs) > 0 {
		if err := startNodeIPAM(ctx, config, o); err != nil {
			return err
		}
	}
	if err := pki.writeKubeconfig(o.listen); err != nil {
		return err
	}
	fmt.Println("ready", filepath.Join(o.dir, kubeconfigFile)) // for users; programs wait for the file
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return fmt.Errorf("kube-apiserver exited: %w", err)
	}
}

// startAgain replaces this process by a new one, as kubelet would start another. It is called where kube-apiserver ends
// itself by klog: when a part of its start takes over a minute, which happens on a busy machine. The store loses
// nothing. A start that fails again and again has no limit here: those who wait for the kubeconfig give up in the end.
func startAgain(code int) {
	if self, err := os.Executable(); err == nil {
		err = syscall.Exec(self, os.Args, os.Environ())
		fmt.Fprintln(os.Stderr, "kube: start again:", err)
	}
	os.Exit(code)
}

// parse parses the command line. dir becomes absolute, because run changes the
// directory.
func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("kube", flag.ContinueOnError)
	f.StringVar(&o.dir, "dir", "", "`directory` for keys, certificates, the store, and admin.kubeconfig, which is written when the server is ready")
	listen := f.String("listen", "127.0.0.1:6443", "`address` and port, also those in the kubeconfig")
	names := f.String("names", "", "further IP `addresses` in the serving certificate, separated by commas")
	cidrs := f.String("cluster-cidr", "", "assign nodes podCIDRs out of these `prefixes`, separated by commas")
	f.BoolVar(&o.audit, "audit", false, "write audit.log with the requests of flannel and all requests about nodes, pods and events")
	f.Usage = func() {
		fmt.Fprintln(f.Output(), "kube -dir DIRECTORY [options] [-- further arguments of kube-apiserver]")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.api = f.Args()
	if o.dir == "" {
		return o, errors.New("-dir is required")
	}
	var err error
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return o, err
	}
	if o.listen, err = netip.ParseAddrPort(*listen); err != nil {
		return o, fmt.Errorf("-listen: %w", err)
	}
	for _, s := range words(*names) {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return o, fmt.Errorf("-names: %w", err)
		}
		o.names = append(o.names, a)
	}
	return o, o.parseCIDRs(words(*cidrs))
}

// parseCIDRs sets cidrs and masks. For example, the prefixes 10.244.0.0/16 and
// fd05::/48 give a node 10.244.N.0/24 and fd05:0:0:N::/64.
func (o *options) parseCIDRs(cidrs []string) error {
	for _, s := range cidrs {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return fmt.Errorf("-cluster-cidr: %w", err)
		}
		mask := 24
		if p.Addr().Is6() {
			mask = 64
		}
		o.cidrs, o.masks = append(o.cidrs, p.Masked()), append(o.masks, mask)
	}
	return nil
}

// words splits a list at commas; an empty list has no words.
func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
