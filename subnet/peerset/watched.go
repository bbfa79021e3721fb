package peerset

import (
	"sync"
	"sync/atomic"

	"flannel/subnet"
)

// Watched has the peers that a lease manager watches, and the Judge of their leases. The zero Watched has no peers, and
// trusts every lease. Its methods may be called concurrently. Judge and Peers take no lock, so that the
// function to which a Keeper hands its set may call them.
type Watched struct {
	// mu is held from when judge or peers changes until peers has judge: otherwise they could get the older one of two
	// Judges last.
	mu    sync.Mutex
	judge atomic.Pointer[subnet.Judge] // nil before SetJudge
	peers atomic.Pointer[Keeper]       // nil before Follow
}

// Follow makes k the peers, and hands it the Judge.
func (w *Watched) Follow(k *Keeper) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.peers.Store(k)
	k.SetJudge(w.Judge())
}

// SetJudge sets how leases are validated, those of the peers too. The managers' SetJudge calls it.
func (w *Watched) SetJudge(j subnet.Judge) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge.Store(&j)
	if k := w.Peers(); k != nil {
		k.SetJudge(j)
	}
}

// Judge returns the Judge that was set last.
func (w *Watched) Judge() subnet.Judge {
	if j := w.judge.Load(); j != nil {
		return *j
	}
	return subnet.Trusting{}
}

// Peers returns the peers that are watched, nil before Follow.
func (w *Watched) Peers() *Keeper { return w.peers.Load() }
