/** What a client of a training server throws. */

export class AglError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/** The server, or a job's store, gave no answer or no whole one. */
export class ServerConnectionError extends AglError {}

/** The token is missing, wrong or revoked: asking again does not help. */
export class AuthenticationError extends ServerConnectionError {}

/** Tasks were refused; the message names the line. */
export class DataUploadError extends AglError {}

/** An option was refused. */
export class InvalidConfigError extends AglError {}

/** The record is no longer as the caller thinks, as an attempt that was given up. */
export class RecordChangedError extends InvalidConfigError {}

/** A job failed or was stopped, or there is no such job, data or checkpoint. */
export class TrainingError extends AglError {}

/** Whether asking again may help. */
export function isOutage(error: unknown): boolean {
  return error instanceof ServerConnectionError && !(error instanceof AuthenticationError);
}
