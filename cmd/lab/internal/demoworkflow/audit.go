package demoworkflow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/demokit"
)

// audit prints the books, and returns an error if they do not balance.
func (d *demo) audit(ctx context.Context) error {
	b := &d.books
	executed, err := os.ReadFile(d.runs)
	if err != nil {
		return err
	}
	stored, err := d.read(ctx)
	if err != nil {
		return err
	}
	completed, counted := 0, 0
	for _, out := range b.ended {
		counted += len(out.Runs)
		if out.Completed {
			completed++
		}
	}
	runs := bytes.Count(executed, []byte("\n"))
	d.out.Say("\n3. THE BOOKS.\n")
	d.out.Say("  %6d  orders were acknowledged; the slowest took %s", len(b.orders), b.slowest.Round(time.Millisecond))
	d.out.Say("  %6d  of them were sent again, because their node was gone", b.again)
	d.out.Say("  %6d  were completed: reserved, charged and shipped", completed)
	d.out.Say("  %6d  were canceled: released and refunded", len(b.ended)-completed)
	d.out.Say("  %6d  results of activities have counted", counted)
	d.out.Say("  %6d  further executions were cut short or ran again, and changed nothing", runs-counted)
	if err := check(b.orders, b.ended, executed, stored); err != nil {
		return fmt.Errorf("the books do not balance: %w", err)
	}
	d.out.Say("\nThe books balance: every order is done or undone as a whole, and no step was booked twice.")
	return nil
}

// read returns the values of all keys that the orders may have written. Keys that do not exist are left out.
func (d *demo) read(ctx context.Context) (map[string]json.RawMessage, error) {
	keys := map[string]bool{}
	for id, o := range d.books.orders {
		for _, s := range steps() {
			if s.key == nil {
				continue
			}
			keys[s.key(o)], keys[noteOf(id, s.name)], keys[noteOf(id, s.undo)] = true, true, true
		}
	}
	stored := map[string]json.RawMessage{}
	for some := range slices.Chunk(slices.Sorted(maps.Keys(keys)), 100) {
		var items []struct {
			Key  string
			Data json.RawMessage
		}
		err := d.cluster.Nodes[0].Call(ctx, http.MethodPost, "/v1.0/state/statestore/bulk?consistency=strong",
			demokit.Text(map[string]any{"keys": some}), &items)
		if err != nil {
			return nil, err
		}
		for _, i := range items {
			if len(i.Data) > 0 {
				stored[i.Key] = i.Data
			}
		}
	}
	return stored, nil
}

// check returns an error that joins all violations of these rules:
//
//   - Each acknowledged order has ended, and was either carried out or undone as a whole.
//   - Each run in an outcome was executed, is in no other outcome, and equals the note of its step.
//   - The numbers in the store agree with the orders.
//
// The parameter executed contains the ids of all executed runs, one per line.
func check(orders map[string]order, ended map[string]outcome, executed []byte,
	stored map[string]json.RawMessage) error {
	var bad []error
	want := map[string]int{}
	seen := map[string]bool{}
	for id, o := range orders {
		out, ok := ended[id]
		if !ok {
			bad = append(bad, fmt.Errorf("%s was acknowledged and has not ended", id))
			continue
		}
		names := []string{"reserve", "charge", "ship"}
		if out.Completed != (o.To != moon) {
			bad = append(bad, fmt.Errorf("%s to %s: completed is %v", id, o.To, out.Completed))
		}
		if !out.Completed {
			names = append(names, "refund", "release")
		}
		var got []string
		for _, r := range out.Runs {
			got = append(got, r.Step)
			if seen[r.ID] || !bytes.Contains(executed, []byte(r.ID+"\n")) {
				bad = append(bad, fmt.Errorf("%s: the execution %s of %s has counted twice or never ran", id, r.ID,
					r.Step))
			}
			seen[r.ID] = true
			if err := booking(id, r, stored); err != nil {
				bad = append(bad, err)
			}
		}
		if !slices.Equal(got, names) {
			bad = append(bad, fmt.Errorf("%s has the steps %v, want %v", id, got, names))
		}
		for _, s := range steps() {
			if s.key == nil {
				continue
			}
			if _, undone := stored[noteOf(id, s.undo)]; undone == out.Completed {
				bad = append(bad, fmt.Errorf("%s: completed is %v, and %s was booked: %v", id, out.Completed, s.undo,
					undone))
			}
			if _, ok := want[s.key(o)]; !ok {
				want[s.key(o)] = initial
			}
			if out.Completed {
				want[s.key(o)] += s.change(o)
			}
		}
	}
	for key, number := range want {
		if string(stored[key]) != fmt.Sprint(number) {
			bad = append(bad, fmt.Errorf("%s is %s in the store, and %d by the orders", key, stored[key], number))
		}
	}
	return errors.Join(bad...)
}

// booking returns an error if the note that a step has saved in the store is missing or differs from the run r of the
// step. The step ship saves no note.
func booking(id string, r run, stored map[string]json.RawMessage) error {
	if r.Step == "ship" {
		return nil
	}
	var note run
	if err := json.Unmarshal(stored[noteOf(id, r.Step)], &note); err != nil || note != r {
		return fmt.Errorf("%s: %+v has counted, and the note says %s", id, r, stored[noteOf(id, r.Step)])
	}
	return nil
}
