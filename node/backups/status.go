package backups

import (
	"fmt"

	"github.com/quorate/quorate/api/admin/schema"
)

// Status returns the schedule and its last backup, or nil if there is no schedule.
func (s *Schedule) Status() *schema.BackupStatus {
	if s.opts.Every <= 0 {
		return nil
	}
	out := &schema.BackupStatus{To: s.target.String(), EverySeconds: int64(s.opts.Every.Seconds()), Keep: s.opts.Keep}
	r := s.latest.Load()
	if r.Last != nil {
		out.Last = &schema.BackupDone{Name: r.Last.Name, Node: r.Last.Node, Time: r.Last.Time, Bytes: r.Last.Bytes,
			Verified: r.Last.Verified}
	}
	if r.Claim != nil {
		out.Running = r.Claim.Node
	}
	return out
}

// Issues returns an issue if the last attempt failed, or if the last complete backup is older than two periods.
func (s *Schedule) Issues() (out []schema.Issue) {
	r := s.latest.Load()
	switch {
	case s.opts.Every <= 0:
	case r.Failed != nil:
		out = append(out, schema.Issue{About: "backup",
			Reason: fmt.Sprintf("the scheduled backup failed at %s on %s: %s",
				r.Failed.Time.Format("2006-01-02 15:04:05Z"), r.Failed.Node, r.Failed.Error)})
	case r.Last != nil && s.opts.Now().Sub(r.Last.Time) > 2*s.opts.Every:
		out = append(out, schema.Issue{About: "backup", Reason: fmt.Sprintf("the last scheduled backup is from %s: "+
			"set backup: in the settings file of every server", r.Last.Time.Format("2006-01-02 15:04:05Z"))})
	}
	return out
}
