package main

import (
	"context"
	"encoding/json"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"runtime"
	"time"

	"flannel/pkg/bundle"
	"flannel/pkg/doctor"
	"flannel/pkg/probe"
	"flannel/pkg/status"
	"flannel/pkg/version"
	"flannel/subnet/etcd"
	"flannel/subnet/kube"
)

// examine is the command that looks for what people run into. It changes nothing.
func examine(ctx context.Context, o options, stdout, stderr io.Writer) int {
	var flags goflag.FlagSet
	asJSON := flags.Bool("json", false, "print one JSON document: a list of checks with verdict, what was seen, and the fix")
	pack := flags.String("bundle", "", "also pack what a maintainer needs, without secrets, into this `file` (.tar.gz)")
	look := probe.Options{Version: version.String(), SubnetFile: o.SubnetFile, VIPFile: vipFile(o), JournalFile: journalFile(o), Cluster: lookAtStore(o)}
	flags.StringVar(&look.ConfDir, "cni-conf-dir", systemPath("/etc/cni/net.d"), "`directory` of CNI configurations")
	flags.StringVar(&look.BinDir, "cni-bin-dir", systemPath("/opt/cni/bin"), "`directory` of CNI plugins")
	flags.StringVar(&look.DataDir, "cni-data-dir", usualDataDir(), "host-local's dataDir; on Windows, for kube-proxy's source VIP: the `directory` with one for each network")
	each := limitFlag(&flags, "timeout", 5*time.Second, "`bound` of each look; what takes longer is skipped")
	if done, code := parseCommand(&flags, "", o, stdout, stderr); done {
		return code
	}
	look.Each = *each
	for _, path := range []string{"/k/SourceVip.json", "/k/SourceVipRequest.json", "/sourcevip/sourceVip.json", "/sourcevip/sourceVipRequest.json"} {
		look.Left = append(look.Left, systemPath(path)) // of Microsoft/SDN and of sig-windows-tools
	}
	for _, c := range commands() {
		look.Commands = append(look.Commands, c.name)
	}
	snapshot := probe.Look(ctx, look)
	if ctx.Err() != nil {
		err := errors.New("doctor: interrupted; what was not looked at cannot be judged")
		return answer(stdout, stderr, *asJSON, failure{err.Error()}, "", err)
	}
	results := doctor.Examine(snapshot)
	var err error
	if *asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(results)
	} else {
		err = doctor.Print(stdout, results)
	}
	if err == nil && *pack != "" {
		if err = bundle.Write(ctx, bundled(o, look), *pack, snapshot, results); err == nil {
			_, err = fmt.Fprintf(stderr, "packed %s; look through it before you give it away: it has addresses and names of your nodes\n", *pack)
		}
	}
	if err != nil {
		return codeOf(err, stderr)
	}
	if doctor.Count(results, doctor.Fail) > 0 {
		return exitNotWell
	}
	return exitOK
}

// bundled is what a bundle is made of, beside what was seen.
func bundled(o options, look probe.Options) bundle.Options {
	return bundle.Options{
		SubnetFile: o.SubnetFile, LogFile: o.LogFile, VIPFile: look.VIPFile, JournalFile: look.JournalFile,
		NetConf:  func(ctx context.Context) ([]byte, error) { return readNetConf(ctx, o, slog.New(slog.DiscardHandler)) },
		Password: o.Etcd.Password, KeyFile: o.Etcd.KeyFile, Kubeconfig: o.Kube.Kubeconfig,
	}
}

// lookAtStore asks the store for what only it knows.
func lookAtStore(o options) func(context.Context) doctor.Cluster {
	return func(ctx context.Context) doctor.Cluster {
		mine := "etcd"
		if o.Kube.On {
			mine = "kubernetes"
		}
		r, err := status.Ask(ctx, status.Socket(o.SubnetFile))
		if err == nil && r.Store != mine {
			return noCluster(fmt.Sprintf("the daemon's leases are in %s: give this command the daemon's flags, as in flanneld --kube-subnet-mgr doctor", r.Store))
		}
		if !o.Kube.On {
			c := noCluster("leases are in etcd, so only Kubernetes itself could tell")
			c.Ahead = fact(etcd.Ahead(ctx, etcd.Options{Endpoints: o.Etcd.Endpoints, CAFile: o.Etcd.CAFile, CertFile: o.Etcd.CertFile, KeyFile: o.Etcd.KeyFile}))
			return c
		}
		api := kube.Options{Kubeconfig: o.Kube.Kubeconfig, APIURL: o.Kube.APIURL, NodeName: o.Kube.NodeName,
			PodName: o.Kube.PodName, PodNamespace: o.Kube.PodNamespace, Prefix: o.Kube.AnnotationPrefix, UserAgent: "flanneld/" + version.Version}
		proxy := fact(kube.Proxy(api))
		e, err := kube.Examine(ctx, api)
		if err != nil {
			c := noCluster(err.Error())
			if c.Proxy = proxy; kube.Unheard(err) {
				c.Unheard = err.Error()
			}
			return c
		}
		c := doctor.Cluster{Node: e.Node, Ahead: doctor.Known(e.Ahead), PodCIDRs: doctor.Known(e.PodCIDRs), WindowsNodes: doctor.Known(e.Windows), Proxy: proxy}
		if runtime.GOOS == "windows" { // on Linux no check needs them, and flannel's own rights do not reach that far
			c.Services = fact(kube.ServiceNetworks(ctx, api))
		}
		return c
	}
}

func fact[T any](v T, err error) doctor.Fact[T] {
	if err != nil {
		return doctor.Unknown[T](err.Error())
	}
	return doctor.Known(v)
}

func noCluster(why string) doctor.Cluster {
	return doctor.Cluster{Ahead: doctor.Unknown[time.Duration](why), PodCIDRs: doctor.Unknown[[]string](why), WindowsNodes: doctor.Unknown[[]string](why),
		Proxy: doctor.Unknown[string](why), Services: doctor.Unknown[[]netip.Prefix](why)}
}
