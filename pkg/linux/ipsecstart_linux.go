// This file starts and stops the charon of ikeStore, if flanneld starts one. The loop calls it, as the rest of ikeStore.

package linux

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"flannel/pkg/linux/charon"
)

const (
	// startWait bounds how long reach, and with it the loop, waits for a charon that it has started.
	startWait = 10 * time.Second
	// startLimit is how long a charon may take until it listens. Then it is ended, and the next one may take twice as
	// long, up to 16 times.
	startLimit = time.Minute
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
	if _, err := s.observeStart(); err != nil { // it has ended since the last pass
		return err
	}
	program, state, err := charon.Start(s.config, startLimit<<min(s.kills, 4))
	if err != nil {
		return fmt.Errorf("%w: %w", charon.ErrNotRunning, err)
	}
	if program != "" { // else an earlier pass has started it
		if s.state != nil {
			s.kills++
		}
		s.state = state
		s.log.Info("started strongSwan's IKE daemon", "program", program)
	}
	output := ""
	for began := time.Now(); time.Since(began) < startWait; time.Sleep(50 * time.Millisecond) {
		if err = s.connect(); !errors.Is(err, charon.ErrNotRunning) {
			return err
		}
		var ended error
		if output, ended = s.observeStart(); ended != nil {
			return ended
		}
	}
	return fmt.Errorf("it was started and does not listen yet: %w: %s", err, output)
}

// observeStart returns the last lines of the output of the charon that start has started, and an error once if it has ended.
func (s *ikeStore) observeStart() (output string, err error) {
	if s.state == nil {
		return lastLines("", 3), nil // an earlier flanneld has started it, if there is one
	}
	output, err = s.state()
	output = lastLines(output, 3)
	if err != nil {
		s.state = nil
		err = fmt.Errorf("%w: it was started and has ended: %w: %s", charon.ErrNotRunning, err, output)
	}
	return output, err
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
	if !s.mayStop() {
		s.disconnect()
		return nil
	}
	if err := s.connect(); err != nil && !errors.Is(err, charon.ErrNotRunning) {
		return err
	}
	err := charon.Stop(s.client, s.config, sig)
	s.disconnect()
	return err
}
