package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"flannel/pkg/dataplane"
	"flannel/pkg/reconcile"
	"flannel/pkg/status"
	"flannel/subnet"
)

// A part is one thing that every pass reconciles (ADR 14). Its file has its state, which
// lasts as long as the membership (the time with one subnet), and all that it does. The loop
// calls its functions, on its goroutine (loop.go).
type part struct {
	// name is that of the part in /readyz, metrics and flanneld status, if it fails.
	// Parts may share a name.
	name string
	// reconcile compares the desired state with the actual state, and writes the
	// difference. nil: the part only reports. After an error, the other parts are reconciled
	// even so, the node is not ready, and the pass is repeated after a pause (timers).
	reconcile func(ctx context.Context, p *pass) error
	// needsPeers means that reconcile is not called until the set of peers is complete.
	needsPeers bool
	// report is called when all parts were reconciled. It says to the Board and the
	// store what the part knows (pass.tell, pass.store). nil: nothing but its error.
	report func(p *pass)
	// log is called when Board and store have the reports, which therefore do not wait
	// for a slow log. It logs what has changed since the pass before. nil: nothing.
	log func(p *pass)
	// wakes cause a pass when they receive. Before that pass, woken is called, and returns
	// whether a pass is needed; nil: it is.
	wakes []<-chan struct{}
	woken func() (needed bool)
}

// parts returns the parts of a pass in their order, in the state in which they are
// after joining. Each line has the reason for its place.
func (d *Daemon) parts() []part {
	return []part{
		d.underlayPart(),   // first: a configuration has to fit the underlay
		d.configPart(),     // before the devices: it decides which there are
		d.devicesPart(),    // before the lease, which has their MAC addresses, and the paths, which lead through them
		d.leasePart(),      // before the plan, which compares peers with this node's lease
		d.movedPart(),      // before the bridge: a pod that starts in the former subnet brings back what is deleted there
		d.bridgePart(),     // before a peer's route to the former subnet
		d.peersPart(),      // before all that needs paths: it makes them from the leases
		d.duplicatesPart(), // after the plan, which finds them
		d.orphansPart(),    // before the paths: the dataplane holds both
		d.guardPart(),      // before the paths: the dataplane applies both
		d.pathsPart(),      // deletes paths only if all before could be read
		d.trialPart(),      // after the former paths are gone: packets to the peers that it asks might take them
		d.clusterPart(),    // after the peers: their set says whether other nodes know this one
		d.rejectsPart(),    // after the plan and the paths, which reject and refuse peers
		d.windowsPart(),    // only reports
		d.twinsPart(),      // only reports
		d.firewallPart(),   // after the paths: no peer waits for iptables
		// The last to write: CNI plugins start pods with the subnet file. Without paths, the
		// pods' packets would leave by the default route, and unencrypted.
		d.subnetFilePart(),
		d.probesPart(),  // only reports
		d.passLogPart(), // only reports
	}
}

// pass is what the parts of one pass share: the node, of which each part may read all,
// and the results that other parts need. A field is set by the part that its comment
// names; without it, by any.
type pass struct {
	*node
	in      *inbox
	retried bool // the pause before a retry was over
	resync  bool // what notifications may have missed is read again
	again   bool // it is a retry or a resync: what is chosen from the state of the system is chosen again

	links   dataplane.Links   // devices
	known   bool              // peers: the set is complete. Without it, no part that needs peers reconciles
	set     subnet.Set        // peers: the leases, with the rejected ones
	valid   int               // peers: how many have paths
	rejects []subnet.Rejected // peers: by the plan, and entries that are no lease
	state   dataplane.State   // desired: peers, orphans and guard make it, for paths
	unfound error             // orphans: why the paths of the system could not be read
	refused []subnet.Rejected // paths: peers for which the operating system refused an entry
	rules   int               // firewall: how many chains have changed

	failed failures      // the parts before
	due    time.Time     // when the next pass is due, at the latest; zero: at the resync. See wakeAt
	store  subnet.Report // for the lease manager
	told   []told        // for the Board
	took   time.Duration // until the reports
}

// wakeAt makes the next pass begin at a time, unless something causes one earlier.
func (p *pass) wakeAt(t time.Time) {
	if p.due.IsZero() || t.Before(p.due) {
		p.due = t
	}
}

// told fills fields of a report in a part of the Board.
type told struct {
	part string // of package status
	fill func(*status.Report)
}

// tell has the Board call fill whenever somebody asks for a part, until the next pass
// is over. fill may be called on any goroutine, also during the next pass: it must
// only use values that nobody modifies, and neither the pass nor its node.
func (p *pass) tell(part string, fill func(*status.Report)) {
	p.told = append(p.told, told{part, fill})
}

// Names of parts that others ask for.
const (
	partConfig  = "config"
	partDevices = "devices"
	partPeers   = "peers"
	partPaths   = "dataplane"
	// partSubnetFile fails with subnet.ErrDirGone if a restart of the container is needed (loop.run).
	partSubnetFile = "subnet-file"
	// partCluster fails while other nodes cannot know this node, which this node can
	// neither change nor retry.
	partCluster = "cluster"
)

// failures are the parts of a pass that failed.
type failures []failure

// failure is one failed part, by its name: config, devices, publish, bridge, peers,
// dataplane, cluster, firewall or subnet-file.
type failure struct {
	part string
	err  error
}

// add records the error of a part, unless it is nil. Errors under one name are joined, as
// parts may share it.
func (f *failures) add(part string, err error) {
	if err == nil {
		return
	}
	for i := range *f {
		if of := &(*f)[i]; of.part == part {
			of.err = errors.Join(of.err, err)
			return
		}
	}
	*f = append(*f, failure{part, err})
}

// err joins the errors into one that names each part; nil: nothing failed.
func (f failures) err() error {
	var errs []error
	for _, failure := range f {
		errs = append(errs, fmt.Errorf("%s: %w", failure.part, failure.err))
	}
	return errors.Join(errs...)
}

// has reports whether one of these parts failed.
func (f failures) has(parts ...string) bool {
	return slices.ContainsFunc(f, func(failure failure) bool { return slices.Contains(parts, failure.part) })
}

// of returns the error of a part; nil: it did not fail.
func (f failures) of(part string) error {
	for _, failure := range f {
		if failure.part == part {
			return failure.err
		}
	}
	return nil
}

// own returns the failures of this node itself: those that another pass may mend.
func (f failures) own() failures {
	return slices.DeleteFunc(slices.Clone(f), func(failure failure) bool { return failure.part == partCluster })
}

// unknown reports whether a part could not read the actual state.
func (f failures) unknown() bool { return reconcile.IsUnknown(f.err()) }

// parts returns the names of the failed parts, without those that only wait for
// the store.
func (f failures) parts() (names []string) {
	for _, failure := range f {
		if !errors.Is(failure.err, errNoPeers) && !errors.Is(failure.err, errNotPublished) {
			names = append(names, failure.part)
		}
	}
	return names
}

// retry returns why another pass may do better; nil: it would not.
func (p *pass) retry() error {
	if err := p.failed.own().err(); err != nil || len(p.refused) == 0 {
		return err
	}
	return errors.New(p.refused[0].Reason)
}
