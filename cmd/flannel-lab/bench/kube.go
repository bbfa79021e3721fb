package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/cmd/flannel-lab/lab"
	"flannel/internal/test/kubetest/cluster"
)

// Sizes of the measurements after the first sync: heartbeats of other nodes, and
// nodes that join one by one with a pause.
const (
	heartbeats = 500
	singleOnes = 25
)

// kubeRows are the rows for Kubernetes. Targets and flannel's figures are for
// 5,000 peers.
var kubeRows = []row{
	{"", "start on an empty kernel", "", ""},
	{"ready_ms", "until READY=1, ms", "600", "2300"},
	{"subnet_env_ms", "until subnet.env, ms", "", ""},
	{"first_sync_ms", "until every entry is there, ms", "1000", "3300"},
	{"first_cpu_s", "CPU of the daemon, s", "0.6", "2.85"},
	{"first_children_s", "CPU of its children, s", "", ""},
	{"first_rss_mb", "peak RSS, MB", "80", "345–409"},
	{"first_received_mb", "received, MB", "", "16.3"},
	{"first_log_bytes", "log, bytes", "", ""},
	{"first_alloc_mb", "allocated, MB", "", ""},
	{"", "the API server alone, which bin/kube contains without optimization", "", ""},
	{"server_list_ms", "all Nodes as protobuf, unread, ms", "", ""},
	{"server_plain_ms", "the same without compression, ms", "", ""},
	{"server_metadata_ms", "all Nodes' metadata, as after a lost position, ms", "", ""}, // when a watch cannot continue
	{"", "a heartbeat of another node", "", ""},
	{"heartbeat_cpu_ms", "CPU, ms", "0.2", "0.65"},
	{"heartbeat_received_kb", "received, KB", "3", "16"},
	{"", "route to a new node, from the answer to the request that annotated it", "", ""},
	{"join_p50_ms", "p50, ms", "", "9.5"},
	{"join_p95_ms", "p95, ms", "10", "18.6"},
	{"", "the same, from the request", "", ""},
	{"join_sent_p50_ms", "p50, ms", "", ""},
	{"join_sent_p95_ms", "p95, ms", "", ""},
	{"", "the same, from the event of a watch of the bench itself", "", ""},
	{"join_event_p50_ms", "p50, ms", "", ""},
	{"join_event_p95_ms", "p95, ms", "", ""},
	{"join_cpu_ms", "CPU of the daemon, ms", "", ""},
	{"", "memory after --settle", "", ""},
	{"settled_resident_mb", "resident, MB", "45", ""},
	{"settled_anonymous_mb", "of it anonymous, MB", "", ""},
	{"settled_file_mb", "of it of files, MB", "", ""},
	{"", "after all this", "", ""},
	{"idle_cpu_percent", "idle CPU with children, % of a core", "", ""},
	{"last_rss_mb", "peak RSS, MB", "80", ""},
}

// flannelPrefix is the prefix of flannel's annotations.
const flannelPrefix = "flannel.alpha.coreos.com/"

// measureKube measures daemons whose peers are Nodes of a real API server. The
// peers are created once, and each round starts a daemon on another node.
func measureKube(ctx context.Context, o Options, peers int) (column, error) {
	c := column{Store: "kubernetes", Backend: "vxlan", Peers: peers}
	o.lab.Kube, o.lab.Nodes = true, o.rounds
	o.lab.KubeArgs = []string{"-cluster-cidr=" + benchNet} // its controller must accept the podCIDRs of the peers
	b := &bench{options: o, backend: c.Backend, peers: peersFrom(0, peers)}
	var err error
	if b.lab, err = lab.New(ctx, o.lab); err != nil {
		return c, err
	}
	defer b.close()
	fmt.Fprintf(os.Stderr, "kubernetes, %d peers: creating them\n", peers)
	if err := b.populateKube(ctx); err != nil {
		return c, err
	}
	// A node has a daemon in one round only, so that each starts on an empty kernel.
	var rounds []map[string]float64
	for i, n := range b.lab.Nodes {
		fmt.Fprintf(os.Stderr, "kubernetes, %d peers: start %d of %d\n", peers, i+1, o.rounds)
		if err := b.kubeRound(ctx, n, i == o.rounds-1); err != nil {
			return c, fmt.Errorf("%w; end of the log of the daemon: %s", err, logEnd(n.Log()))
		}
		rounds = append(rounds, b.figures)
	}
	c.Figures = best(rounds)
	return c, nil
}

// populateKube writes the network configuration and creates the Nodes of the
// peers.
func (b *bench) populateKube(ctx context.Context) error {
	if err := b.onLink(ctx); err != nil {
		return err
	}
	config := fmt.Sprintf(`{"Network":%q,"EnableNFTables":%t,"Backend":{"Type":%q}}`, benchNet, b.options.nftables, b.backend)
	if err := b.lab.SetConfig(ctx, config); err != nil {
		return err
	}
	if err := b.lab.Kube.AddPeers(ctx, len(b.peers), func(i int) cluster.Peer { return b.peers[i].node(b.backend) }); err != nil {
		return err
	}
	// For as long as the server and its controller usually need until they are idle.
	time.Sleep(2*time.Second + time.Duration(len(b.peers))*400*time.Microsecond)
	return nil
}

// node returns the peer as a Node with flannel's annotations for the backend.
func (p peer) node(backend string) cluster.Peer {
	const flannel = flannelPrefix
	return cluster.Peer{Name: fmt.Sprintf("peer-%05d", p.number), PodCIDR: p.subnet(), Annotations: map[string]string{
		flannel + "kube-subnet-manager": "true", flannel + "backend-type": backend,
		flannel + "backend-data": fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, p.mac()), flannel + "public-ip": p.publicIP().String(),
	}}
}

// kubeRound measures the start of a daemon, and in the last round also what
// follows. At its end the daemon is stopped, so that it does not take part in the
// next round.
func (b *bench) kubeRound(ctx context.Context, n *lab.Node, last bool) error {
	b.figures = map[string]float64{}
	defer b.leave()
	if err := b.observe(n); err != nil {
		return err
	}
	if err := b.serverAlone(ctx); err != nil {
		return err
	}
	before, err := b.received()
	if err != nil {
		return err
	}
	if err := b.firstSync(ctx); err != nil {
		return err
	}
	after, err := b.received()
	if err != nil {
		return err
	}
	b.figures["first_received_mb"] = (after - before) / 1e6
	if last {
		for _, step := range []func(context.Context) error{b.settled, b.heartbeats, b.join, b.brieflyIdle} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		if err := b.peak("last_rss_mb"); err != nil {
			return err
		}
	}
	_, err = n.Stop(ctx)
	return err
}

// serverAlone measures the share of the server in the start of a daemon:
// sending the list of Nodes.
func (b *bench) serverAlone(ctx context.Context) error {
	const protobuf = "application/vnd.kubernetes.protobuf"
	// resourceVersion 0: from the server's cache, as clients that watch read it.
	for key, as := range map[string]struct{ accept, encoding string }{
		"server_list_ms": {protobuf, "gzip"}, "server_plain_ms": {protobuf, "identity"},
		"server_metadata_ms": {protobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "gzip"},
	} {
		began := time.Now()
		body, err := b.lab.Kube.Client.CoreV1().RESTClient().Get().Resource("nodes").Param("resourceVersion", "0").
			SetHeader("Accept", as.accept).SetHeader("Accept-Encoding", as.encoding).Stream(ctx)
		if err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		_, err = io.Copy(io.Discard, body)
		if err = errors.Join(err, body.Close()); err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		b.figures[key] = milliseconds(time.Since(began))
	}
	return nil
}

// received returns the number of bytes that the node has received on its
// uplink, with all headers. Only the API server sends to it.
func (b *bench) received() (bytes float64, err error) {
	err = b.node.Do(func() error {
		dev, err := netlink.LinkByName(lab.Uplink)
		if err != nil {
			return fmt.Errorf("read the counters of %s: %w", lab.Uplink, err)
		}
		bytes = float64(dev.Attrs().Statistics.RxBytes)
		return nil
	})
	return bytes, err
}

// heartbeats changes the status of other Nodes as their kubelets do, slowly enough that
// each change is an event of its own. The daemon must not write anything because of them.
func (b *bench) heartbeats(ctx context.Context) error {
	began, err := b.received()
	if err != nil {
		return err
	}
	before, _, err := cpu(b.node.PID())
	if err != nil {
		return err
	}
	writes := b.watch.writes()
	now := time.Now()
	for i := range heartbeats {
		p := b.peers[i*7919%len(b.peers)] // a large prime: different Nodes, far from each other
		if err := b.lab.Kube.Heartbeat(ctx, p.node("").Name, now.Add(time.Duration(i)*time.Second)); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
	b.waitIdle() // so that the CPU time for the last heartbeats counts, too
	after, _, err := cpu(b.node.PID())
	if err != nil {
		return err
	}
	ended, err := b.received() // err is returned at the end
	if n := b.watch.writes() - writes; n > 0 {
		return fmt.Errorf("the daemon wrote %d entries because of heartbeats", n)
	}
	b.figures["heartbeat_cpu_ms"] = milliseconds(after-before) / heartbeats
	b.figures["heartbeat_received_kb"] = (ended - began) / 1000 / heartbeats
	return err
}

// join adds nodes one by one. The daemon under test sees a Node twice: when it is
// created, and when it is annotated, which is what is measured.
func (b *bench) join(ctx context.Context) error {
	before, _, err := cpu(b.node.PID())
	if err != nil {
		return err
	}
	times := map[string][]float64{}
	// The more nodes there are, the longer a daemon waits between two reads.
	pause := time.Duration(len(b.peers)) * time.Millisecond
	for _, p := range peersFrom(len(b.peers), singleOnes) {
		if err := b.joinOne(ctx, p, times); err != nil {
			return fmt.Errorf("add a node: %w", err)
		}
		time.Sleep(pause)
	}
	b.waitIdle()
	after, _, err := cpu(b.node.PID())
	b.figures["join_cpu_ms"] = milliseconds(after-before) / singleOnes
	for key, v := range times {
		b.figures[key+"_p50_ms"], b.figures[key+"_p95_ms"] = quantile(v, 0.5), quantile(v, 0.95)
	}
	return err
}

// joinOne creates a Node with its podCIDR, and then annotates it, as its flanneld would. It
// appends to times how long it took until the kernel had the peer's entries: since the
// request that annotates ("join_sent"), since its answer ("join"), and since a watch of the
// bench itself received the change ("join_event"). The load on the machine and the server
// delays that watch like the daemon.
func (b *bench) joinOne(ctx context.Context, p peer, times map[string][]float64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	n := p.node(b.backend)
	bare := n
	bare.Annotations = nil
	if err := b.lab.Kube.AddPeer(ctx, int(p.number), bare); err != nil {
		return err
	}
	watch, err := b.lab.Kube.Client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + n.Name})
	if err != nil {
		return err
	}
	defer watch.Stop()
	// This watch begins with the Node as it is, without annotations. If it ends early,
	// the time is too early, and the figure too large.
	observed := make(chan time.Time, 1)
	go func() {
		for e := range watch.ResultChan() {
			if node, ok := e.Object.(*corev1.Node); !ok || len(node.Annotations) > 0 {
				break
			}
		}
		observed <- time.Now()
	}()
	time.Sleep(20 * time.Millisecond) // the daemon sees the bare Node meanwhile, as in a cluster
	wait := b.watch.expect(func(s *seen) bool { return s.has(b.backend, p) })
	began := time.Now()
	if err := b.lab.Kube.Annotate(ctx, n.Name, n.Annotations); err != nil {
		return err
	}
	answered := time.Now()
	at, err := wait(ctx)
	for key, from := range map[string]time.Time{"join_sent": began, "join": answered, "join_event": <-observed} {
		times[key] = append(times[key], milliseconds(max(0, at.Sub(from)))) // max: the kernel may have it before
	}
	return err
}

// brieflyIdle measures idle CPU for the time in which older figures of this table were measured.
func (b *bench) brieflyIdle(ctx context.Context) error { return b.idle(ctx, 10*time.Second) }
