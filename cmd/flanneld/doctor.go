package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"flannel/pkg/doctor"
	"flannel/pkg/probe"
	"flannel/pkg/probe/path"
	"flannel/pkg/status"
	"flannel/pkg/version"
	"flannel/pkg/windows/node"
)

// doctorCommand is the command doctor: package probe takes a snapshot of the node, and
// package doctor examines it. It changes nothing on the node. doctorCommand declares the
// flags, and what it returns runs when they are parsed.
func doctorCommand(c *call) func(context.Context) int {
	c.jsonFlag("print one JSON document: a list of checks with verdict, findings and fix")
	all := c.flags.Bool("v", false, "list all checks, not only those with a problem or an unknown result")
	bundlePath := c.flags.String("bundle", "", "also write what a maintainer needs, without secrets, into this `file` (.tar.gz); -: to standard output, and the results to standard error")
	look := c.probeOptions() // the daemon's flags, such as --subnet-file, are parsed already (see call)
	c.flags.StringVar(&look.Peer, "peer", "", "test the way to this `peer` (its name, a subnet or an address), and not to some that are chosen; only on Linux")
	c.flags.StringVar(&look.ConfDir, "cni-conf-dir", "", "`directory` of CNI configurations; default: where containerd looks, see cni-dirs")
	binDir := c.flags.String("cni-bin-dir", "", "`directory` of CNI plugins; default: where containerd looks, see cni-dirs")
	c.flags.StringVar(&look.DataDir, "cni-data-dir", usualDataDir(), "host-local's dataDir: the `directory` with one for each network")
	timeout := c.limitFlag("timeout", 5*time.Second, "time limit of each probe; what takes longer is unknown")
	return func(ctx context.Context) int {
		asking, cancel := context.WithTimeout(ctx, *timeout) // for the two questions to the daemon
		// The returned answer is ignored, because askSettings has copied it into c.options, except where
		// flags of this command say otherwise. onBehalf: the daemon must ask the API server, as this
		// command has no credentials.
		_, onBehalf := c.askSettings(asking)
		err := checkPeer(asking, look)
		cancel()
		if err != nil {
			return c.fail(err)
		}
		c.lookAtCNI(&look, *binDir)
		look.Timeout, look.Cluster = *timeout, c.store().Read
		if onBehalf && c.Kube.On {
			look.Cluster = c.clusterOnBehalf // instead of the store itself
		}
		snapshot := probe.Read(ctx, look)
		if ctx.Err() != nil {
			return c.fail(errors.New("doctor: interrupted before all probes were done"))
		}
		results := doctor.Examine(snapshot)
		// The results are printed before the bundle is written, which may fail and takes
		// longer.
		archive := c.stdout
		if *bundlePath == "-" {
			c.stdout = c.stderr
		}
		if c.json {
			err = c.printJSON(results)
		} else {
			err = doctor.Print(c.stdout, results, *all)
		}
		switch {
		case err != nil || *bundlePath == "":
		case *bundlePath == "-":
			err = probe.WriteBundle(ctx, c.bundleOptions(), archive, snapshot, results)
		default:
			if err = probe.WriteBundleFile(ctx, c.bundleOptions(), *bundlePath, snapshot, results); err == nil {
				_, err = fmt.Fprintf(c.stderr, "wrote %s; check it before you share it: it contains addresses and names of your nodes\n", *bundlePath)
			}
		}
		if err != nil {
			return c.reportError(err)
		}
		if doctor.Count(results, doctor.Fail) > 0 {
			return exitNotReady
		}
		return exitOK
	}
}

// lookAtCNI sets the directories of CNI that the flags do not set.
func (p process) lookAtCNI(look *probe.Options, binDir string) {
	look.BinDirs = []string{binDir}
	if look.ConfDir != "" && binDir != "" {
		return // containerd's do not matter
	}
	dirs := p.cniDirs()
	look.ConfDir, look.CNIProblem = cmp.Or(look.ConfDir, dirs.Conf), dirs.Problem
	if binDir == "" {
		look.BinDirs = dirs.bins
	}
}

// checkPeer returns an error if the daemon does not know the peer of the flag --peer.
func checkPeer(ctx context.Context, look probe.Options) error {
	if look.Peer == "" {
		return nil
	}
	report, err := status.Ask(ctx, status.Socket(look.SubnetFile))
	if err != nil {
		return fmt.Errorf("--peer=%s: the running daemon knows the peers: %w", look.Peer, err)
	}
	_, err = path.Find(report.Peers, look.Peer)
	return err
}

// store returns the store of leases for the probe.
func (o *options) store() probe.Store {
	store := probe.Store{SubnetFile: o.SubnetFile, Etcd: o.Etcd.client()}
	if o.Kube.On {
		store.Kube = o.Kube.client()
	}
	return store
}

// probeOptions returns the options of the probe, except for the store, which the
// daemon is asked for, and those set by the command's own flags. See probe.Options for what
// each is.
func (o *options) probeOptions() probe.Options {
	look := probe.Options{Version: version.String(), SubnetFile: o.SubnetFile, VIPFile: node.VIPFile(o.SubnetFile), JournalFile: node.JournalFile(o.SubnetFile),
		Commands: commandNames(), SubnetFileOf: subnetFileOf, Underlay: anyUnderlay}
	look.PodResults = podResults()
	for _, path := range []string{"/k/SourceVip.json", "/k/SourceVipRequest.json", "/sourcevip/sourceVip.json", "/sourcevip/sourceVipRequest.json"} {
		look.LeftFiles = append(look.LeftFiles, systemPath(path)) // files of the scripts of Microsoft/SDN and sig-windows-tools
	}
	return look
}

// bundleOptions returns what package probe needs for a bundle besides the snapshot and the
// results of the doctor. The last three fields are not for the bundle: probe.WriteBundle reads
// the secrets that they are or name, to replace them in all files of the bundle.
func (o *options) bundleOptions() probe.BundleOptions {
	return probe.BundleOptions{
		SubnetFile: o.SubnetFile, LogFile: o.Logging.File, VIPFile: node.VIPFile(o.SubnetFile), JournalFile: node.JournalFile(o.SubnetFile),
		// What the client of etcd logs while it waits is not for the user.
		NetConf:  func(ctx context.Context) ([]byte, error) { return readNetConf(ctx, *o, slog.New(slog.DiscardHandler)) },
		Password: o.Etcd.Password, KeyFile: o.Etcd.KeyFile, Kubeconfig: o.Kube.Kubeconfig,
	}
}
