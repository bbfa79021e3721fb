package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/cmd/flannel-lab/cluster"
	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

const clusterUsage = `flannel-lab cluster: a Kubernetes cluster on one machine, with kubelet, containerd and kube-proxy on its nodes.
The machine's own network is not changed. Build its programs and images with 'make cluster'.

  flannel-lab cluster up [options]      start a cluster in the background
  flannel-lab cluster status            show its nodes and pods
  flannel-lab cluster kubectl …         run kubectl as the administrator
  flannel-lab cluster exec NODE|POD|infra [-- COMMAND…]   run a command of this machine there (default: a shell)
  flannel-lab cluster load FILE [NODE…] import an archive of images
  flannel-lab cluster reboot NODE       turn a node off and on again
  flannel-lab cluster start|stop|kill NODE containerd|kubelet|kube-proxy
  flannel-lab cluster log NODE containerd|kubelet|kube-proxy
  flannel-lab cluster down              end the cluster and remove everything of it, and what a killed one has left

Options of up:
`

// theCluster returns the cluster in the background, as theLab does the lab.
func theCluster() background {
	return background{what: "cluster", command: "flannel-lab cluster", serve: []string{"cluster", "serve"},
		socket: cmp.Or(os.Getenv("FLANNEL_LAB_CLUSTER_SOCKET"), "/run/flannel-lab-cluster.sock"),
		hint:   "flannel-lab cluster kubectl get pods -A -o wide · flannel-lab cluster exec node1 -- ip route",
		env:    []string{"KUBECONFIG=" + cluster.Kubeconfig, "CONTAINERD_NAMESPACE=k8s.io"}}
}

// inNamespaces reports whether a command of the cluster must run in namespaces of its
// own: lab.Init moves it there.
func inNamespaces(args []string) bool {
	return len(args) > 0 && (args[0] == "serve" || args[0] == "sweep")
}

// clusterCommand runs a command and returns the exit status, as dispatch does.
func clusterCommand(ctx context.Context, args []string) (int, error) {
	words := append(slices.Clone(args), "")
	switch words[0] {
	case "up", "serve":
		o, err := parseCluster(args[0], args[1:])
		if err != nil {
			return 2, err
		}
		if words[0] == "serve" {
			return 0, serveCluster(ctx, o)
		}
		return 0, theCluster().up(ctx, args[1:])
	case "status", "reboot", "start", "stop", "kill", "log":
		return 0, theCluster().ask(args)
	case "load":
		file, err := filepath.Abs(words[1])
		if err != nil || words[1] == "" {
			return 2, errors.Join(errors.New("load needs a file"), err)
		}
		return 0, theCluster().ask(append([]string{"load", file}, args[2:]...))
	case "exec", "kubectl":
		dir, err := lab.BinDir()
		if err != nil {
			return 1, err
		}
		lab.SetPath(filepath.Join(dir, "cluster"))
		if words[0] == "kubectl" { // exec infra -- kubectl …; below args[1:] leaves out "exec"
			args = append([]string{"exec", "infra", "--"}, args...)
		}
		return theCluster().execute(args[1:])
	case "down":
		err := theCluster().end()
		// With ECONNRESET and EPIPE, the server has just been killed.
		if errors.As(err, new(notRunning)) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			return sweep()
		}
		return 0, err
	case "sweep": // what down runs in namespaces of its own
		return 0, cluster.Sweep()
	case "", "help", "-h", "-help", "--help":
		fmt.Print(clusterUsage)
		flags := new(clusterOptions).flags("")
		flags.SetOutput(os.Stdout)
		flags.PrintDefaults()
		return 0, nil
	}
	return 2, fmt.Errorf("unknown command %q; see flannel-lab cluster help", args[0])
}

// sweep removes what a cluster that was killed has left: its socket, and control groups,
// which do not end with namespaces.
func sweep() (int, error) {
	if err := machine.CheckRoot(); err != nil {
		return 1, err
	}
	_ = os.Remove(theCluster().socket)
	cmd := machine.Command("cluster", "sweep")
	cmd.Stderr = os.Stderr
	err := cmd.Run()
	if err == nil {
		fmt.Println("no cluster is running; what a killed one may have left is removed")
	}
	return 0, err
}

// clusterOptions are the options of cluster up, which passes them to serve.
type clusterOptions struct {
	cluster cluster.Options
	bare    bool // without a pod network
}

func (o *clusterOptions) flags(name string) *flag.FlagSet {
	f := flag.NewFlagSet("flannel-lab cluster "+name, flag.ContinueOnError)
	f.IntVar(&o.cluster.Nodes, "nodes", 2, "number of `nodes`")
	f.BoolVar(&o.cluster.Dual, "ipv6", false, "nodes and Services have IPv6 in addition to IPv4; kube-flannel.yml is applied with EnableIPv6")
	f.BoolVar(&o.cluster.IPv6Only, "ipv6-only", false, "nodes, pods and Services have IPv6 alone")
	f.StringVar(&o.cluster.ProxyMode, "proxy-mode", "iptables", "`mode` of kube-proxy: iptables or nftables")
	f.BoolVar(&o.bare, "bare", false, "install no pod network: the nodes stay NotReady")
	f.StringVar(&o.cluster.BinDir, "bin", "", "`directory` of the programs (default: bin)")
	return f
}

func parseCluster(command string, args []string) (o clusterOptions, err error) {
	f := o.flags(command)
	f.SetOutput(io.Discard)
	if err = f.Parse(args); errors.Is(err, flag.ErrHelp) {
		f.SetOutput(os.Stdout)
		f.PrintDefaults()
	}
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("cluster %s: unexpected argument %q", command, f.Arg(0))
	}
	return o, err
}

// serveCluster is the command that cluster up starts: it runs the cluster.
func serveCluster(ctx context.Context, o clusterOptions) error {
	return theCluster().run(ctx, func(ctx context.Context, stop context.CancelFunc) (io.Closer, handler, error) {
		c, err := cluster.New(ctx, o.cluster)
		if err != nil {
			return nil, nil, err
		}
		s := &clusterServer{c, stop}
		if o.bare {
			return c, s.do, nil
		}
		return c, s.do, c.Install(ctx) // flannel, by its manifest
	})
}

// clusterServer answers the requests about a cluster: do is its handler. Only one goroutine,
// that of background.run, uses the cluster.
type clusterServer struct {
	cluster *cluster.Cluster
	stop    context.CancelFunc // ends the server, and with it the cluster
}

// do is a handler. The files belong to the cluster.
func (s *clusterServer) do(ctx context.Context, request []string) (string, []*os.File, error) {
	words := append(slices.Clone(request), "", "", "") // missing words are empty
	switch words[0] {
	case "status":
		text, err := s.cluster.Kubectl(ctx, "get", "nodes,pods", "-A", "-o", "wide")
		return text, nil, err
	case "down":
		s.stop()
		return "", nil, nil
	case "load":
		return "", nil, s.load(ctx, request[1], request[2:]) // clusterCommand has checked that there is a file
	case "enter":
		files, err := s.enter(ctx, words[1])
		return "", files, err
	}
	n, err := s.cluster.Node(words[1]) // all other requests name a node
	if err != nil {
		return "", nil, err
	}
	switch words[0] {
	case "reboot":
		return "", nil, n.Reboot(ctx)
	case "start":
		return "", nil, n.StartService(ctx, words[2])
	case "stop":
		return "", nil, n.StopService(ctx, words[2], syscall.SIGTERM)
	case "kill":
		return "", nil, n.StopService(ctx, words[2], syscall.SIGKILL)
	case "log":
		return n.Log(words[2]), nil, nil
	}
	return "", nil, fmt.Errorf("unknown request %q; see flannel-lab cluster help", strings.Join(request, " "))
}

// load imports images into some nodes, or all.
func (s *clusterServer) load(ctx context.Context, file string, nodes []string) error {
	for _, n := range s.cluster.Nodes {
		if len(nodes) > 0 && !slices.Contains(nodes, n.Name) {
			continue
		}
		if err := n.Load(ctx, file); err != nil {
			return err
		}
	}
	return nil
}

// enter returns the namespace files of infra, a node, or a pod of any namespace.
func (s *clusterServer) enter(ctx context.Context, name string) ([]*os.File, error) {
	if name == "infra" {
		return s.cluster.Infra.Files(), nil
	}
	if n, err := s.cluster.Node(name); err == nil {
		return n.Files(), nil
	}
	pods, err := s.cluster.Pods(ctx, metav1.NamespaceAll, "")
	if err != nil {
		return nil, err
	}
	for _, p := range pods {
		if p.Name == name {
			return p.Files(), nil
		}
	}
	return nil, fmt.Errorf("no node and no pod %q; see flannel-lab cluster status", name)
}
