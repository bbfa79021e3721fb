package conformance

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// test is the result of a test that has run. It has passed if both texts are empty.
type test struct {
	name    string
	seconds float64
	failure string // message; "": it has not failed
	skipped string // why it skipped itself; "": it has not
}

// results are the tests that have run, the slowest first. A step before or after all tests
// is among them if it has failed.
type results []test

// junit is what is read of a JUnit file.
type junit struct {
	Suites []struct {
		Cases []struct {
			Name    string   `xml:"name,attr"`
			Seconds float64  `xml:"time,attr"`
			Failure *message `xml:"failure"`
			Error   *message `xml:"error"`
			Skipped *message `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

type message struct {
	Short string `xml:"message,attr"`
	Long  string `xml:",chardata"`
}

func (m *message) text() string { return cmp.Or(m.Short, strings.TrimSpace(m.Long)) } // may be ""

// read reads the results in a directory. No result is an error: e2e.test ended
// before a test, or no name matches.
func read(dir string) (r results, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "junit*.xml"))
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var j junit
		if err := xml.Unmarshal(text, &j); err != nil {
			return nil, fmt.Errorf("parse %s: %w", name, err)
		}
		r = append(r, j.tests()...)
	}
	if len(r) == 0 {
		return nil, fmt.Errorf("no test has run: see %s", filepath.Join(dir, "log"))
	}
	slices.SortFunc(r, func(a, b test) int { return cmp.Compare(b.seconds, a.seconds) })
	return r, nil
}

// selfSkipped is what Ginkgo writes about a test that has run and skipped itself.
// Tests that the focus leaves out have no message.
const selfSkipped = "skipped - "

// tests returns the results of a file, in its order.
func (j junit) tests() (r results) {
	for _, s := range j.Suites {
		for _, c := range s.Cases {
			t := test{name: strings.TrimPrefix(c.Name, "[It] "), seconds: c.Seconds}
			isTest := t.name != c.Name // names of steps begin with another word
			switch {
			case c.Failure != nil:
				t.failure = cmp.Or(c.Failure.text(), "failed")
			case c.Error != nil:
				t.failure = cmp.Or(c.Error.text(), "error")
			case !isTest: // a step before or after all tests
				continue
			case c.Skipped != nil:
				why, ran := strings.CutPrefix(c.Skipped.text(), selfSkipped)
				if !ran { // the focus left it out
					continue
				}
				t.skipped = cmp.Or(why, "skipped")
			}
			r = append(r, t)
		}
	}
	return r
}

// count returns as text how many tests have passed, failed and skipped themselves, of
// those whose names contain a word ("": all).
func (r results) count(word string) string {
	passed, failed, skipped := 0, 0, 0
	for _, t := range r {
		switch {
		case !strings.Contains(t.name, word):
		case t.failure != "":
			failed++
		case t.skipped != "":
			skipped++
		default:
			passed++
		}
	}
	return fmt.Sprintf("%d passed, %d failed, %d skipped", passed, failed, skipped)
}

// write writes counts, failures, skipped tests and the slowest tests.
func (r results) write(w io.Writer) {
	fmt.Fprintf(w, "%s; of those of [Conformance], %s\n", r.count(""), r.count("[Conformance]"))
	for _, t := range r {
		switch {
		case t.failure != "":
			fmt.Fprintf(w, "  failed   %4.0f s  %s\n           %s\n", t.seconds, t.name, oneLine(t.failure))
		case t.skipped != "":
			fmt.Fprintf(w, "  skipped  %s\n           %s\n", t.name, oneLine(t.skipped))
		}
	}
	for _, t := range r[:min(5, len(r))] {
		fmt.Fprintf(w, "  slow     %4.0f s  %s\n", t.seconds, t.name)
	}
}

// oneLine returns the first 400 bytes of a text, without line breaks.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	return text[:min(400, len(text))]
}

// unexpected returns the tests that have failed and are not expected to, and those
// that have passed although they are expected to fail.
func (r results) unexpected(backend string) (failed, passed results) {
	for _, t := range r {
		e := expectation(t.name, backend)
		switch {
		case t.failure != "" && e == nil:
			failed = append(failed, t)
		case t.failure == "" && t.skipped == "" && e != nil:
			passed = append(passed, t)
		}
	}
	return failed, passed
}

// verdict returns an error that names what unexpected returns; nil if that is nothing.
func (r results) verdict(backend string) error {
	var errs []error
	failed, passed := r.unexpected(backend)
	for _, t := range failed {
		errs = append(errs, fmt.Errorf("failed: %s", t.name))
	}
	for _, t := range passed {
		errs = append(errs, fmt.Errorf("passed, but was expected to fail (%s): %s", expectation(t.name, backend).reason, t.name))
	}
	return errors.Join(errs...)
}
