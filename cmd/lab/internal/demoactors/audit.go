package demoactors

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cmd/lab/internal/demokit"
)

const settleTime = 2 * time.Minute // for reminders to finish all transfers

// audit waits until all transfers are finished, prints the books, and returns an error if they do not balance.
func (d *demo) audit(ctx context.Context) error {
	outcomes, err := d.settle(ctx)
	if err != nil {
		return err
	}
	balances, err := d.balances(ctx)
	if err != nil {
		return err
	}
	turns, beside, err := d.turns.count()
	if err != nil {
		return err
	}
	l := &d.ledger
	count := map[string]int{}
	reminded := 0
	for _, t := range outcomes {
		count[t.Outcome]++
		if t.Reminded {
			reminded++
		}
	}
	sum := 0
	for _, b := range balances {
		sum += b
	}
	d.out.Say("\nThe books:\n")
	d.out.Say("  %5d transfers: %d done, %d refused because the account had too little, %d never began",
		len(outcomes), count[done], count[refused], count[cancelled])
	d.out.Say("  %5d of them were acknowledged; %d of these were sent again, and got the same answer",
		len(l.acknowledged), l.again)
	d.out.Say("  %5d calls failed; %d were repeated with the same id", l.failed, l.repeated)
	d.out.Say("  %5d finished by a reminder, because their node or their client had gone", reminded)
	d.out.Say("  %5d turns of actors; no two of one owner overlapped", turns)
	if beside > 0 {
		d.out.Say("  %5d of them began while a turn of an earlier owner, which had lost its lease, was running", beside)
	}
	d.out.Say("  %5d is the sum of the %d accounts; it was %d", sum, accounts, accounts*opening)
	return errors.Join(l.wrong, compare(l.acknowledged, outcomes, balances))
}

// compare returns an error if the outcome of a transfer differs from the acknowledged outcome. It also returns an
// error if the balance of an account is not the opening balance plus or minus its completed transfers.
func compare(acknowledged, outcomes map[string]transfer, balances []int) error {
	want := map[string]int{}
	for i := range balances {
		want[account(i)] = opening
	}
	for id, t := range outcomes {
		if a, ok := acknowledged[id]; ok && a.Outcome != t.Outcome {
			return fmt.Errorf("the transfer %s was acknowledged as %q, and is %q", id, a.Outcome, t.Outcome)
		}
		if t.Outcome == done {
			want[t.From] -= t.Amount
			want[t.To] += t.Amount
		}
	}
	for i, balance := range balances {
		if want[account(i)] != balance {
			return fmt.Errorf("the account %s has %d, and by its transfers it must have %d", account(i), balance,
				want[account(i)])
		}
	}
	return nil
}

// settle waits until every transfer is finished, and returns all transfers by id. It does not repeat unacknowledged
// transfers, because their reminders must finish them. It cancels transfers that have not begun.
func (d *demo) settle(ctx context.Context) (map[string]transfer, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	var mu sync.Mutex
	outcomes := map[string]transfer{} // guarded by mu
	err := demokit.Each(slices.Sorted(maps.Keys(d.ledger.orders)), clients, func(i int, id string) error {
		return demokit.Poll(ctx, func() error {
			var t transfer
			if err := d.call(ctx, i, "Transfer/"+id, "close", struct{}{}, &t); err != nil {
				return err
			}
			if t.Outcome == open {
				return fmt.Errorf("the transfer %s is not finished", id)
			}
			mu.Lock()
			defer mu.Unlock()
			outcomes[id] = t
			return nil
		})
	})
	return outcomes, err
}

func (d *demo) balances(ctx context.Context) ([]int, error) {
	out := make([]int, accounts)
	err := demokit.Each(out, clients, func(i, _ int) error {
		return d.call(ctx, i, "Account/"+account(i), "balance", struct{}{}, &out[i])
	})
	return out, err
}
