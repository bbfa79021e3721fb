package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/lab"
)

// theLab returns the lab in the background, whether it runs or not. There is one for each
// host, unless the environment names another socket.
func theLab() background {
	return background{what: "lab", command: "flannel-lab", serve: []string{"serve"},
		socket: cmp.Or(os.Getenv("FLANNEL_LAB_SOCKET"), "/run/flannel-lab.sock"),
		hint:   "flannel-lab exec pod1 -- ping pod2 · flannel-lab exec node1 -- ip route"}
}

// reply answers a request. A client connects, sends one request as a JSON list of
// words, and reads one reply until the end of the connection:
//
//	["pod","add","node1","web"]   {"Text":"POD  NODE …","Error":""}
//	["enter","pod1"]              {"Text":"","Error":""}, and open files
//
// Open namespace files are sent with the reply as control data (SCM_RIGHTS), so that exec
// can enter namespaces that have no path. Error is empty if the request succeeded.
type reply struct {
	Text  string
	Error string
}

// server answers the requests about a lab: do is its handler. Only one goroutine, that of
// run, uses the lab.
type server struct {
	lab  *lab.Lab
	stop context.CancelFunc // ends serve, and with it the lab
}

// serve is the command that up starts: it runs the lab until a request "down" or a signal.
func serve(ctx context.Context, o options) error {
	return theLab().run(ctx, func(ctx context.Context, stop context.CancelFunc) (io.Closer, handler, error) {
		l, err := lab.New(ctx, o.lab)
		if err != nil {
			return nil, nil, err
		}
		s := &server{l, stop}
		return l, s.do, populate(ctx, l, o)
	})
}

// handler carries out a request. Its result has the text, the files and the error of the
// reply; the files stay open. run calls it for one request after the other.
type handler func(ctx context.Context, request []string) (text string, files []*os.File, err error)

// run is the server of a lab or a cluster. It calls start, which starts the lab, then
// accepts requests on file descriptor 3 (startServer has handed it on), one at a time, and
// carries them out with the handler. When stop is called or ctx ends, it closes what start
// has returned, and removes the socket as the last thing: end waits for that.
func (b background) run(ctx context.Context, start func(ctx context.Context, stop context.CancelFunc) (io.Closer, handler, error)) error {
	signal.Ignore(syscall.SIGPIPE) // stderr is a pipe to up, which has ended
	listener, err := net.FileListener(os.NewFile(3, b.socket))
	if err != nil {
		return fmt.Errorf("serve must be started by up: %w", err)
	}
	defer os.Remove(b.socket)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running, do, err := start(ctx, stop)
	if running != nil { // after an error, too, for example of populate
		defer running.Close()
	}
	if err != nil {
		return err
	}
	// up has listened before it started this process, so clients that connected
	// meanwhile wait until here: the first answer means that everything is ready.
	context.AfterFunc(ctx, func() { listener.Close() }) // ends Accept
	do.serve(ctx, listener)
	return nil
}

// serve answers one client after the other, until the listener is closed.
func (do handler) serve(ctx context.Context, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed
		}
		do.answer(ctx, c.(*net.UnixConn)) // only a Unix socket can send files
	}
}

// reachTimeout is how long populate waits for one pod to reach another one. Such a wait
// fails only if something is wrong, so it is short, for users who experiment.
const reachTimeout = 8 * time.Second

// populate starts flanneld and creates a pod on every node, and waits until the
// first pod and each of the others reach each other. That includes every node once;
// all pairs would take too long with many nodes.
func populate(ctx context.Context, l *lab.Lab, o options) error {
	if err := l.SetConfig(ctx, l.Config(o.backend)); err != nil {
		return err
	}
	if err := l.StartAll(ctx); err != nil {
		return err
	}
	var pods []*lab.Pod
	for i, n := range l.Nodes {
		p, err := n.AddPod(ctx, fmt.Sprintf("pod%d", i+1))
		if err != nil {
			return err
		}
		pods = append(pods, p)
	}
	for _, p := range pods[1:] {
		for _, way := range [][2]*lab.Pod{{pods[0], p}, {p, pods[0]}} {
			if _, err := way[0].Reach(ctx, way[1].IP(), reachTimeout); err != nil {
				// No error: the user may want to examine a lab in which
				// something does not work.
				fmt.Fprintf(os.Stderr, "%s cannot reach %s: %v\n", way[0].Name, way[1].Name, err)
			}
		}
	}
	return nil
}

// clientTimeout is how long a client may take to send its request, and to read the reply.
// background.call does both at once. Other clients wait meanwhile.
const clientTimeout = 5 * time.Second

// answer reads one request and sends the reply. A client that ends early, is slow or sends
// nonsense gets none.
func (do handler) answer(ctx context.Context, c *net.UnixConn) {
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(clientTimeout)) // fails only on a closed socket; so below
	var request []string
	if err := json.NewDecoder(c).Decode(&request); err != nil {
		return
	}
	text, files, err := do(ctx, request)
	r := reply{Text: text}
	if err != nil {
		r.Error = err.Error()
	}
	b, err := json.Marshal(r)
	if err != nil {
		return
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	_ = c.SetWriteDeadline(time.Now().Add(clientTimeout))
	// The files go with the first bytes; what did not fit into the socket follows.
	// Errors are ignored: the client may have gone.
	if n, _, err := c.WriteMsgUnix(b, unix.UnixRights(fds...), nil); err == nil && n < len(b) {
		_, _ = c.Write(b[n:])
	}
}

// do is a handler. The files belong to the lab.
func (s *server) do(ctx context.Context, request []string) (string, []*os.File, error) {
	words := append(slices.Clone(request), "", "", "") // missing words are empty
	switch words[0] + " " + words[1] {
	case "status ": // one word
		text, err := s.status(ctx)
		return text, nil, err
	case "down ": // run ends after this reply
		s.stop()
		return "", nil, nil
	case "pod list":
		return s.pods(), nil, nil
	case "pod add":
		text, err := s.addPod(ctx, words[2], words[3])
		return text, nil, err
	case "pod del":
		p := s.pod(words[2])
		if p == nil {
			return "", nil, fmt.Errorf("no pod %q", words[2])
		}
		return "", nil, p.Delete(ctx)
	case "flanneld start", "flanneld stop", "flanneld kill", "flanneld log":
		text, err := s.flanneld(ctx, words[1], words[2])
		return text, nil, err
	}
	if words[0] == "enter" {
		files, err := s.enter(words[1])
		return "", files, err
	}
	return "", nil, fmt.Errorf("unknown request %q; see flannel-lab help", strings.Join(request, " "))
}

// enter returns the namespace files of a place: infra, a pod or a node.
func (s *server) enter(name string) ([]*os.File, error) {
	if name == "infra" {
		return s.lab.Infra.Files(), nil
	}
	if p := s.pod(name); p != nil {
		return p.Files(), nil
	}
	n, err := s.lab.Node(name)
	if err != nil {
		return nil, fmt.Errorf("%w; for pods see flannel-lab pod list", err)
	}
	return n.Files(), nil
}

// pod returns a pod by its name, which is unique in the lab; nil: there is none.
func (s *server) pod(name string) *lab.Pod {
	for _, n := range s.lab.Nodes {
		if p := n.Pods()[name]; p != nil {
			return p
		}
	}
	return nil
}

// addPod creates a pod. Nodes, pods and infra have their names in common, because
// exec finds them all by name.
func (s *server) addPod(ctx context.Context, node, name string) (string, error) {
	n, err := s.lab.Node(node)
	if err != nil {
		return "", err
	}
	if _, err := s.lab.Node(name); err == nil || name == "infra" || s.pod(name) != nil {
		return "", fmt.Errorf("%s already exists", name)
	}
	if _, err := n.AddPod(ctx, name); err != nil {
		return "", err
	}
	return s.pods(), nil
}

// flanneld controls the daemon of a node. start returns when the node is ready.
func (s *server) flanneld(ctx context.Context, verb, node string) (string, error) {
	n, err := s.lab.Node(node)
	if err != nil {
		return "", err
	}
	switch verb {
	case "start":
		if err := n.Start(); err != nil {
			return "", err
		}
		return "", n.Ready(ctx)
	case "stop":
		code, err := n.Stop(ctx)
		return fmt.Sprintf("flanneld exited with status %d\n", code), err
	case "kill":
		return "", n.Kill()
	}
	return n.Log(), nil
}

// status returns three tables: nodes, leases as the store has them, and pods.
func (s *server) status(ctx context.Context) (string, error) {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NODE\tADDRESS\tFLANNELD\tSUBNET\tMTU")
	for _, n := range s.lab.Nodes {
		env, err := n.SubnetEnv()
		if err != nil {
			env = map[string]string{} // not written yet
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", n.Name, lab.Join(n.IP4, n.IP6), state(ctx, n),
			strings.TrimSpace(env["FLANNEL_SUBNET"]+" "+env["FLANNEL_IPV6_SUBNET"]), env["FLANNEL_MTU"])
	}
	_ = w.Flush() // into memory
	leases, err := s.lab.Leases(ctx)
	if err != nil {
		fmt.Fprintf(&b, "\nleases: %v\n", err) // no error of the request: the user may have stopped the store
	} else {
		fmt.Fprintln(&b, "\nLEASES")
	}
	for _, key := range slices.Sorted(maps.Keys(leases)) {
		fmt.Fprintln(&b, key, leases[key])
	}
	return b.String() + "\n" + s.pods(), nil
}

// state describes the daemon of a node by /readyz.
func state(ctx context.Context, n *lab.Node) string {
	if !n.Running() {
		return "not running"
	}
	code, body, err := n.Ask(ctx, "/readyz")
	switch {
	case err != nil:
		return "running, no answer: " + err.Error()
	case code != 200:
		return "not ready: " + strings.Join(strings.Fields(body), " ")
	}
	return "ready"
}

// pods returns the table of pods.
func (s *server) pods() string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "POD\tNODE\tADDRESS")
	for _, n := range s.lab.Nodes {
		for _, name := range slices.Sorted(maps.Keys(n.Pods())) {
			p := n.Pods()[name]
			fmt.Fprintf(w, "%s\t%s\t%s\n", name, n.Name, lab.Join(p.IP4, p.IP6))
		}
	}
	_ = w.Flush() // into memory
	return b.String()
}
