package daemon

import "errors"

// The values of the attribute cause in the log. Operators and tests search for
// them, so they do not change when a message is reworded.
const (
	causeNoConfig         = "no-config"
	causeCannotStart      = "cannot-start"
	causeRejoin           = "rejoin"
	causeSynced           = "in-step"
	causeNotSynced        = "not-in-step"
	causePeerRejected     = "peer-rejected"
	causePeerRefused      = "peer-refused" // by the operating system
	causePeerRecovered    = "peer-recovered"
	causePeersOmitted     = "peers-omitted" // from the log, to limit its size
	causeWindowsMismatch  = "windows-mismatch"
	causeAddressConflict  = "address-conflict"
	causeDuplicateMAC     = "duplicate-mac"
	causeDuplicateKey     = "duplicate-key"
	causeUnderlayChanged  = "underlay-changed"
	causeUnderlayKept     = "underlay-kept"
	causeConfigWarning    = "config-warning"
	causeConfigChanged    = "config-changed"
	causeConfigRefused    = "config-refused"
	causeConfigKept       = "config-kept" // by --config-follow=false
	causeConfigDisruptive = "config-disruptive"
	causeConfigTrial      = "config-trial"
	causeConfigProven     = "config-proven"
	causeConfigReverted   = "config-reverted"
	causeConfigUnproven   = "config-unproven"    // and refused
	causeConfigNoEvidence = "config-no-evidence" // and kept
)

// causeOf returns the cause of the first error in the tree of err that has one,
// or else otherwise.
func causeOf(err error, otherwise string) string {
	if c := (interface{ Cause() string })(nil); errors.As(err, &c) {
		return c.Cause()
	}
	return otherwise
}

// caused is an error with a cause. Other packages have error types of their own with
// a method Cause; causeOf finds them all.
type caused struct {
	error
	cause string
}

// Cause returns the value of the attribute cause in the log.
func (c caused) Cause() string { return c.cause }
func (c caused) Unwrap() error { return c.error }
