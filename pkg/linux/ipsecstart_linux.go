// This file starts and stops the charon of ikeStore, if flanneld starts one. The loop calls it, as the rest of ikeStore.

package linux

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"flannel/pkg/linux/charon"
)

// startLimit is how long a charon may take until it listens, less in tests. Then it is killed, and the next one may take
// twice as long, up to 16 times.
var startLimit = time.Minute

const (
	// startWait bounds how long reach, and with it the loop, waits for a charon that it has started.
	startWait = 10 * time.Second
	// othersWait is how long a service has to restart its charon.
	othersWait = 30 * time.Second
)

// reach connects to charon. It starts charon if it does not run, unless somebody else is about to
// restart it or its last start failed just now. ipsec.ensure calls it, so that its error is one of the device.
func (s *ikeStore) reach() error {
	err := s.connect()
	if !errors.Is(err, charon.ErrNotRunning) || !s.othersEnded.IsZero() && time.Since(s.othersEnded) < othersWait {
		return err
	}
	return s.starts.Do(s.start)
}

// start starts charon, and waits until it listens. It returns early if charon ends.
func (s *ikeStore) start() error {
	if err := s.observeStart(); err != nil { // it has ended since the last pass
		return err
	}
	program, state, killed, err := charon.Start(s.config, startLimit<<min(s.kills, 4))
	if len(killed) > 0 {
		s.kills++
		output := ""
		if s.state != nil { // else it has listened before, or an earlier flanneld has started it
			output, _ = s.state()
			output = lastLines(output, 3)
		}
		s.log.Warn("killed strongSwan's IKE daemon, which did not listen",
			"pids", killed, "socket", charon.Socket, "output", output)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", charon.ErrNotRunning, err)
	}
	if program != "" { // else an earlier pass has started it
		s.state = state
		s.log.Info("started strongSwan's IKE daemon", "program", program)
	}
	for began := time.Now(); time.Since(began) < startWait; time.Sleep(50 * time.Millisecond) {
		if err = s.connect(); !errors.Is(err, charon.ErrNotRunning) {
			return err
		}
		if ended := s.observeStart(); ended != nil {
			return ended
		}
	}
	return fmt.Errorf("it was started and does not listen yet: %w", err)
}

// observeStart returns an error once if the charon that start has started has ended, with the last lines of its output.
func (s *ikeStore) observeStart() error {
	if s.state == nil {
		return nil
	}
	output, ended := s.state()
	if ended == nil {
		return nil
	}
	s.state = nil
	return fmt.Errorf("%w: it was started and has ended: %w: %s", charon.ErrNotRunning, ended, lastLines(output, 3))
}

// forgetStarts makes the next start one without a pause and with startLimit.
func (s *ikeStore) forgetStarts() {
	s.starts.Clear()
	s.state, s.kills = nil, 0
}

// mayStop reports whether there may be a charon that stop ends. It only looks for the file config.
func (s *ikeStore) mayStop() bool { return charon.MayRun(s.config) }

// stop ends the charon that this flanneld has started, in this run or an earlier one, if there is
// one. sig is SIGTERM, with which charon deletes its security associations, or SIGKILL, with which
// they stay.
func (s *ikeStore) stop(sig unix.Signal) error {
	s.forgetStarts()
	s.disconnect()
	if !s.mayStop() {
		return nil
	}
	return charon.Stop(s.config, sig)
}
