package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"flannel/cmd/flannel-lab/cluster"
	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
)

// Run runs the tests and writes their results to w. It returns an error if one of
// them has failed that is not in expected, if one in expected has passed, or if the guard
// of a node has found packets. Then the logs of the cluster are in cluster.log, beside the
// results.
func Run(ctx context.Context, w io.Writer, o Options) (err error) {
	if o.cluster.BinDir == "" {
		if o.cluster.BinDir, err = lab.BinDir(); err != nil {
			return err
		}
	}
	if err := o.check(); err != nil {
		return err
	}
	if o.out == "" {
		o.out = filepath.Join(o.cluster.BinDir, "conformance")
	}
	dir := filepath.Join(o.out, o.name())
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: a cluster of %d nodes, CoreDNS and the images of the tests\n", o.name(), o.cluster.Nodes)
	start := time.Now()
	c, err := cluster.New(ctx, o.cluster)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, "cluster.log"), []byte(c.Logs(context.Background())), 0o644))
		}
		err = errors.Join(err, c.Close())
	}()
	if err := o.prepare(ctx, c); err != nil {
		return err
	}
	fmt.Fprintf(w, "ready after %.0f s; the tests write to %s\n", time.Since(start).Seconds(), filepath.Join(dir, "log"))
	before := map[*cluster.Node]map[string]float64{} // what the guards have counted until now
	backend, err := o.backendObject()
	if err != nil {
		return err
	}
	var early error // what the guards found before the tests; these run even so
	for _, n := range c.Nodes {
		if err = acquainted(ctx, n, len(c.Nodes)-1); err == nil {
			before[n], err = guardCounters(ctx, n)
		}
		if err != nil {
			return err
		}
		early = errors.Join(early, foundEarly(n.Name, backend, before[n]))
	}
	start = time.Now()
	ended := o.e2e(ctx, c, dir) // an error also if a test has failed, which the results say, too
	r, err := read(dir)
	if err != nil {
		return errors.Join(err, ended)
	}
	r.write(w)
	fmt.Fprintf(w, "%.0f s with %d processes\n", time.Since(start).Seconds(), o.procs)
	if ctx.Err() != nil { // not all tests have run
		return ctx.Err()
	}
	err = errors.Join(r.verdict(o.backendType()), early)
	for _, n := range c.Nodes {
		err = errors.Join(err, guardFoundNothing(ctx, n, before[n]))
	}
	return err
}

// e2e runs e2e.test in Infra, whose namespaces have the administrator's kubeconfig, and
// waits for it. An error means that a test has failed, or that the program ended early:
// then there are no results in dir.
func (o Options) e2e(ctx context.Context, c *cluster.Cluster, dir string) error {
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	focus := sets[o.set]
	if o.focus != "" {
		focus += ".*(" + o.focus + ")"
	}
	args := []string{"--procs=" + strconv.Itoa(o.procs), "--timeout=3h", "--no-color", "--silence-skips",
		"--focus=" + focus, "--skip=" + o.skip(), o.file("e2e.test"), "--",
		"--provider=skeleton", "--kubeconfig=" + cluster.Kubeconfig,
		"--kubectl-path=" + filepath.Join(o.cluster.BinDir, "kubectl"), "--num-nodes=" + strconv.Itoa(len(c.Nodes)),
		"--report-dir=" + dir, "--disable-log-dump"}
	cmd := exec.CommandContext(ctx, o.file("ginkgo"), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it ends its processes
	cmd.WaitDelay = machine.Longest
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = []string{"KUBECONFIG=" + cluster.Kubeconfig, "TMPDIR=/run"}
	if err := c.Infra.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}
