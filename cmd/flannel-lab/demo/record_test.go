package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flannel/cmd/flannel-lab/lab"
)

// A recording has the output of the demo, in colours that a file does not get, and no
// pause longer than maxPause.
func TestRecording(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, cast bytes.Buffer
		d, err := newShow(Output{Terminal: &out, Record: &cast}, lab.Options{}, "{}")
		if err != nil {
			t.Fatal(err)
		}
		waits := []time.Duration{0, 20 * time.Millisecond, time.Hour, 300 * time.Millisecond}
		var steps []step
		for _, wait := range waits {
			steps = append(steps, step{title: `"a" <b> → c`, do: func(context.Context) error {
				time.Sleep(wait)
				d.prompt("node1", "ip route")
				d.say("     first\n     second")
				d.result("done")
				return nil
			}})
		}
		if err := d.play(t.Context(), steps, func() string { return "" }); err != nil {
			t.Fatal(err)
		}
		text, times := readCast(t, cast.Bytes())
		if plain := colours.ReplaceAllString(text, ""); plain != strings.ReplaceAll(out.String(), "\n", "\r\n") {
			t.Errorf("the recording has %q, the terminal %q", plain, out.String())
		}
		if colours.MatchString(out.String()) {
			t.Errorf("a file gets colours: %q", out.String())
		}
		if lines := strings.Count(out.String(), "\n"); lines != 6*len(waits) {
			t.Errorf("%d lines, want %d", lines, 6*len(waits))
		}
		for _, want := range []string{d.bold(`2. "a" <b> → c`), d.paint("36", "node1# ip route"), d.paint("32", "✔")} {
			if !strings.Contains(text, want) {
				t.Errorf("the recording lacks %q", want)
			}
		}
		last := 0.0
		for _, at := range times {
			if at < last || at-last > maxPause.Seconds()+0.001 {
				t.Errorf("an output at %g s follows one at %g s", at, last)
			}
			last = at
		}
		if want := (20*time.Millisecond + maxPause + 300*time.Millisecond).Seconds(); last != want {
			t.Errorf("the recording takes %g s, want %g", last, want)
		}
	})
}

// readCast returns the text of an asciicast, and the times of its parts.
func readCast(t *testing.T, raw []byte) (text string, times []float64) {
	t.Helper()
	head, events, _ := bytes.Cut(raw, []byte("\n"))
	var header struct{ Version, Width, Height int }
	if err := json.Unmarshal(head, &header); err != nil {
		t.Fatalf("%v in %s", err, head)
	}
	if header.Version != 2 || header.Width <= 0 || header.Height <= 0 {
		t.Errorf("header %s", head)
	}
	for line := range bytes.Lines(events) {
		var event []any
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if len(event) != 3 || event[1] != "o" {
			t.Fatalf("event %s", line)
		}
		at, isNumber := event[0].(float64)
		part, isText := event[2].(string)
		if !isNumber || !isText {
			t.Fatalf("event %s", line)
		}
		text, times = text+part, append(times, at)
	}
	return text, times
}
