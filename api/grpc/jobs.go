package grpc

import (
	"context"
	"strconv"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/jobproto"
)

// jobMethods serves jobs.
type jobMethods struct {
	*core
	jobs *api.Jobs
}

// ScheduleJob stores a job.
func (s *jobMethods) ScheduleJob(ctx context.Context,
	in *runtimev1.ScheduleJobRequest) (*runtimev1.ScheduleJobResponse,
	error) {
	if in.GetJob() == nil {
		in.Job = &runtimev1.Job{}
	}
	j, err := jobproto.ToJob(in.GetJob())
	if err != nil {
		return nil, err
	}
	if err := s.jobs.Schedule(ctx, &j, in.GetOverwrite()); err != nil {
		return nil, err
	}
	return &runtimev1.ScheduleJobResponse{}, nil
}

// ScheduleJobAlpha1 is ScheduleJob under its older name.
func (s *jobMethods) ScheduleJobAlpha1(ctx context.Context,
	in *runtimev1.ScheduleJobRequest) (*runtimev1.ScheduleJobResponse, error) {
	return s.ScheduleJob(ctx, in)
}

// GetJob returns a job.
func (s *jobMethods) GetJob(ctx context.Context, in *runtimev1.GetJobRequest) (*runtimev1.GetJobResponse, error) {
	j, err := s.jobs.Get(ctx, in.GetName())
	if err != nil {
		return nil, err
	}
	job, err := jobproto.Decode(j.Record)
	return &runtimev1.GetJobResponse{Job: job}, err
}

// GetJobAlpha1 is GetJob under its older name.
func (s *jobMethods) GetJobAlpha1(ctx context.Context,
	in *runtimev1.GetJobRequest) (*runtimev1.GetJobResponse, error) {
	return s.GetJob(ctx, in)
}

// DeleteJob removes a job.
func (s *jobMethods) DeleteJob(ctx context.Context,
	in *runtimev1.DeleteJobRequest) (*runtimev1.DeleteJobResponse, error) {
	if err := s.jobs.Delete(ctx, in.GetName()); err != nil {
		return nil, err
	}
	return &runtimev1.DeleteJobResponse{}, nil
}

// DeleteJobAlpha1 is DeleteJob under its older name.
func (s *jobMethods) DeleteJobAlpha1(ctx context.Context,
	in *runtimev1.DeleteJobRequest) (*runtimev1.DeleteJobResponse, error) {
	return s.DeleteJob(ctx, in)
}

// ListJobs returns all jobs of the application. It returns an error if they have more than largeList bytes.
func (s *jobMethods) ListJobs(ctx context.Context, _ *runtimev1.ListJobsRequest) (*runtimev1.ListJobsResponse, error) {
	list, err := s.listJobs(ctx)
	return &runtimev1.ListJobsResponse{Jobs: list}, err
}

// ListJobsAlpha1 is ListJobs under its older name.
func (s *jobMethods) ListJobsAlpha1(ctx context.Context,
	_ *runtimev1.ListJobsRequestAlpha1) (*runtimev1.ListJobsResponseAlpha1, error) {
	list, err := s.listJobs(ctx)
	return &runtimev1.ListJobsResponseAlpha1{Jobs: list}, err
}

// listJobs reads the jobs page by page. It reserves memory for each page before it reads the next one.
func (s *jobMethods) listJobs(ctx context.Context) (out []*runtimev1.Job, err error) {
	total := int64(0)
	for after, more := "", true; more; {
		var page []api.Job
		if page, more, err = s.jobs.List(ctx, "", after, 0); err != nil {
			return nil, err
		}
		size := int64(0)
		for i := range page {
			size += int64(len(page[i].Record))
			after = page[i].Name
		}
		if total += size; total > largeList {
			return nil, &api.Error{Kind: api.Malformed, Code: api.CodeJobList,
				Details: api.Details{Reason: api.ReasonTooLarge}, Message: "the jobs have more than " +
					strconv.Itoa(largeList) + " bytes (list them in pages, over HTTP with GET /v1.0/jobs)"}
		}
		if err := s.extend(ctx, size); err != nil {
			return nil, err
		}
		for i := range page {
			job, err := jobproto.Decode(page[i].Record)
			if err != nil {
				return nil, err
			}
			out = append(out, job)
		}
	}
	return out, nil
}

// DeleteJobsByPrefix deletes the jobs whose names begin with the prefix of the request. An empty prefix deletes all
// jobs of the application.
func (s *jobMethods) DeleteJobsByPrefix(ctx context.Context,
	in *runtimev1.DeleteJobsByPrefixRequest) (*runtimev1.DeleteJobsByPrefixResponse, error) {
	return &runtimev1.DeleteJobsByPrefixResponse{}, s.jobs.DeletePrefix(ctx, in.GetNamePrefix())
}

// DeleteJobsByPrefixAlpha1 is DeleteJobsByPrefix under its older name.
func (s *jobMethods) DeleteJobsByPrefixAlpha1(ctx context.Context,
	in *runtimev1.DeleteJobsByPrefixRequestAlpha1) (*runtimev1.DeleteJobsByPrefixResponseAlpha1, error) {
	return &runtimev1.DeleteJobsByPrefixResponseAlpha1{}, s.jobs.DeletePrefix(ctx, in.GetNamePrefix())
}
