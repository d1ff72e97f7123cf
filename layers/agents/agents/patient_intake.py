"""An intake assistant that fills in a patient's record: working memory of the resource, as JSON of a schema."""

from typing import Literal

from pydantic import BaseModel, Field

from threadkeep import Agent, Memory


class Medication(BaseModel):
    name: str
    dose: str | None = Field(None, description="For example 10 mg daily")


class Contact(BaseModel):
    phone: str | None = None
    email: str | None = None


class Patient(BaseModel):
    """What an intake asks for. Nothing is required: a record grows by what the patient tells."""

    name: str | None = None
    date_of_birth: str | None = Field(None, description="YYYY-MM-DD", pattern=r"^\d{4}-\d{2}-\d{2}$")
    blood_type: Literal["A+", "A-", "B+", "B-", "AB+", "AB-", "O+", "O-"] | None = None
    allergies: list[str] = []
    medications: list[Medication] = []
    history: list[str] = Field([], description="Conditions, past and present")
    contact: Contact = Contact()


patient_intake = Agent(
    id="patient-intake",
    name="Patient Intake",
    description="Takes down what a patient tells into a record with typed fields",
    instructions=(
        "You prepare a doctor's appointment. Ask for one missing field of the patient's record at a time, in one short "
        "sentence, and store each answer at once. Lists are stored whole: send the old entries with the new one. Set a "
        "field to null when the patient takes it back. Give no medical advice."
    ),
    memory=Memory(last_messages=20, working_memory={"enabled": True, "schema": Patient}),
)
