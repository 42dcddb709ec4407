package api

import (
	"context"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Bounds of jobs.
const (
	MaxJobName = 512     // bytes
	MaxJobData = 1 << 20 // bytes
	MaxJobs    = 1000    // jobs in one answer of List
)

// Codes of failures of jobs, as in Dapr.
const (
	CodeJobName          = "DAPR_SCHEDULER_JOB_NAME"
	CodeJobNameEmpty     = "DAPR_SCHEDULER_JOB_NAME_EMPTY"
	CodeJobScheduleEmpty = "DAPR_SCHEDULER_SCHEDULE_EMPTY"
	CodeJobSchedule      = "DAPR_SCHEDULER_SCHEDULE_JOB"
	CodeJobGet           = "DAPR_SCHEDULER_GET_JOB"
	CodeJobList          = "DAPR_SCHEDULER_LIST_JOBS"
	CodeJobDelete        = "DAPR_SCHEDULER_DELETE_JOB"
)

// JobStore stores jobs and calls applications when their jobs are due. It is safe for concurrent use.
type JobStore interface {
	// PutJob stores a job. It returns fault.Conflict if the application has one with that name and overwrite is
	// false, and fault.Invalid if a time or schedule cannot be read.
	PutJob(ctx context.Context, app App, j *Job, overwrite bool) error
	// Job returns the job with the given name. found is false if there is none.
	Job(ctx context.Context, app App, name string) (j Job, found bool, err error)
	// Jobs lists at most limit jobs, sorted by name. Their names begin with prefix and sort after the name in after.
	// more is true if there are further jobs. If the jobs are large, Jobs returns fewer than limit.
	Jobs(ctx context.Context, app App, prefix, after string, limit int) (list []Job, more bool, err error)
	// RemoveJob removes a job, if there is one with that name.
	RemoveJob(ctx context.Context, app App, name string) error
	// RemoveJobs removes all jobs whose names begin with prefix. After an error, some may be removed.
	RemoveJobs(ctx context.Context, app App, prefix string) error
}

// Job is a job of an application.
type Job struct {
	Name     string
	Schedule string
	DueTime  string
	TTL      string
	Repeats  *uint32
	Policy   *JobPolicy // nil = three retries, one second apart
	DataSize int        // bytes
	Record   []byte     // the job as the caller gave it, for answers and for the call of the application
}

// JobPolicy decides what happens if the application fails to handle a tick. A tick is one run of the job at its due
// time. The zero JobPolicy drops the tick without a retry.
type JobPolicy struct {
	Retry      bool
	Interval   time.Duration
	MaxRetries *uint32 // nil = no limit
}

// Jobs serves one application's jobs. It is immutable and safe for concurrent use. All errors are *Error.
type Jobs struct {
	app   App
	store JobStore
}

// NewJobs returns the job service of app.
func NewJobs(app App, store JobStore) *Jobs { return &Jobs{app: app, store: store} }

// Schedule stores a job. The error is of kind Exists if overwrite is false and the application has a job with that
// name.
func (s *Jobs) Schedule(ctx context.Context, j *Job, overwrite bool) error {
	if failure := checkJob(j); failure != nil {
		return failure
	}
	err := s.store.PutJob(ctx, s.app, j, overwrite)
	switch {
	case err == nil:
		return nil
	case fault.Is(err, fault.Conflict):
		return &Error{Kind: Exists, Code: CodeJobSchedule, Details: Details{Reason: CodeJobSchedule}, Cause: err,
			Message: "job " + Shorten(j.Name) + " already exists (set overwrite to replace it)"}
	case fault.Is(err, fault.Invalid):
		return badJob(CodeJobSchedule, fault.Text(err))
	}
	return jobFailed(CodeJobSchedule, "failed to schedule job "+Shorten(j.Name), err)
}

func badJob(code, text string) *Error {
	return &Error{Kind: Malformed, Code: code, Message: text, Details: Details{Reason: code}}
}

// CheckJobName returns an error if no job can have this name, and otherwise nil.
func CheckJobName(name string) *Error {
	if strings.TrimSpace(name) == "" {
		return badJob(CodeJobNameEmpty, "the name of the job is empty")
	}
	if problem := NameProblem(name); problem != "" {
		return badJob(CodeJobName, "the name of the job "+problem)
	}
	return nil
}

// checkJobPrefix returns an error if prefix is not valid UTF-8, because no job name can begin with it.
func checkJobPrefix(prefix string) *Error {
	if !utf8.ValidString(prefix) {
		return badJob(CodeJobName, "the prefix is not valid UTF-8")
	}
	return nil
}

func checkJob(j *Job) *Error {
	if failure := CheckJobName(j.Name); failure != nil {
		return failure
	}
	switch {
	case j.Schedule == "" && j.DueTime == "":
		return badJob(CodeJobScheduleEmpty, "schedule and dueTime are both empty: one of them is needed")
	case j.Repeats != nil && *j.Repeats == 0:
		return badJob(CodeJobSchedule, "repeats: must be at least 1")
	case j.Repeats != nil && *j.Repeats > 1 && j.Schedule == "":
		return badJob(CodeJobSchedule, "repeats: needs a schedule")
	case j.TTL != "" && j.Schedule == "":
		return badJob(CodeJobSchedule, "ttl: needs a schedule")
	case strings.HasPrefix(j.Schedule, "P"):
		return badJob(CodeJobSchedule, "schedule: a period of ISO 8601 is no schedule (write @every 10s)")
	case j.Policy != nil && j.Policy.Interval < 0:
		return badJob(CodeJobSchedule, "failurePolicy.constant.interval: must not be negative")
	case j.DataSize > MaxJobData:
		return badJob(CodeJobSchedule, "data: has "+strconv.Itoa(j.DataSize)+" bytes, the limit is "+
			strconv.Itoa(MaxJobData))
	}
	return nil
}

// NameProblem describes what is wrong with the name of a job, a reminder or a timer, for example "is empty". It returns
// "" for a valid name.
func NameProblem(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > MaxJobName:
		return "is longer than " + strconv.Itoa(MaxJobName) + " bytes"
	case !utf8.ValidString(name):
		return "is not valid UTF-8"
	case state.IsDotSegment(name), strings.ContainsAny(name, `/\#?`),
		strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return `must not be . or .., and must not contain / \ # ? or control characters`
	}
	return ""
}

// Get returns the job with the given name. If there is none, the error is of kind NotFound.
func (s *Jobs) Get(ctx context.Context, name string) (Job, error) {
	if failure := CheckJobName(name); failure != nil {
		return Job{}, failure
	}
	j, found, err := s.store.Job(ctx, s.app, name)
	if err != nil {
		return Job{}, jobFailed(CodeJobGet, "failed to get job "+Shorten(name), err)
	}
	if !found {
		return Job{}, &Error{Kind: NotFound, Code: CodeJobGet, Message: "job not found: " + Shorten(name),
			Details: Details{Reason: CodeJobGet}}
	}
	return j, nil
}

// List returns jobs whose names begin with prefix and sort after lastName, in the order of their names. It returns at
// most limit jobs, or fewer if the jobs are large. A limit below 1 or above MaxJobs means MaxJobs. hasMore is true if
// there are further jobs.
func (s *Jobs) List(ctx context.Context, prefix, lastName string, limit int) (list []Job, hasMore bool, err error) {
	if failure := checkJobPrefix(prefix); failure != nil {
		return nil, false, failure
	}
	if limit <= 0 || limit > MaxJobs {
		limit = MaxJobs
	}
	list, hasMore, err = s.store.Jobs(ctx, s.app, prefix, lastName, limit)
	if err != nil {
		return nil, false, jobFailed(CodeJobList, "failed to list jobs", err)
	}
	return list, hasMore, nil
}

// Delete removes the job with the given name. It succeeds if there is no such job.
func (s *Jobs) Delete(ctx context.Context, name string) error {
	if failure := CheckJobName(name); failure != nil {
		return failure
	}
	if err := s.store.RemoveJob(ctx, s.app, name); err != nil {
		return jobFailed(CodeJobDelete, "failed to delete job "+Shorten(name), err)
	}
	return nil
}

// DeletePrefix removes all jobs whose names begin with prefix. After an error, some of them may have been removed.
func (s *Jobs) DeletePrefix(ctx context.Context, prefix string) error {
	if failure := checkJobPrefix(prefix); failure != nil {
		return failure
	}
	if err := s.store.RemoveJobs(ctx, s.app, prefix); err != nil {
		return jobFailed(CodeJobDelete, "failed to delete the jobs with the prefix "+Shorten(prefix), err)
	}
	return nil
}

func jobFailed(code, sentence string, err error) *Error {
	v := row{conflict: Failed, writes: true}.verdict(fault.CodeOf(err))
	kind := Failed
	if v.kind == Indeterminate || v.kind == Unavailable || v.kind == Timeout {
		kind = v.kind
	}
	return &Error{Kind: kind, Code: code, Message: sentence + ": " + fault.Text(err),
		Details: Details{Reason: v.reason}, Cause: err}
}
